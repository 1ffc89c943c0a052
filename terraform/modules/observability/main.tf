# Alarms on which someone must act, and a dashboard. The metrics are those that driftlog-metrics sends
# from each agent (deploy/systemd); docs/operate.md says what to do for each.

data "aws_region" "current" {}

locals {
  namespace = "driftlog"

  # The largest value of any agent, for so many minutes in a row.
  alarms = {
    OfflinePartitions = {
      above   = 0
      minutes = 1
      says    = "Partitions are not served until an operator acts: driftlog partitions offline."
    }
    UnavailablePartitions = {
      above   = 0
      minutes = 2
      says    = "Partitions have no leader while an object cannot be read; the agents' log names it."
    }
    DamagedPartitions = {
      above   = 0
      minutes = 1
      says    = "Partitions are not sealed for a missing or damaged object; the agents' log names it."
    }
    DamagedRanges = {
      above   = 0
      minutes = 1
      says    = "Sealed objects are missing or damaged; the agents' log names them (sealed_damage_found)."
    }
    CommitsFailing = {
      above   = 30
      minutes = 1
      says    = "The bucket or etcd takes nothing; the agents' log says which, and why."
    }
    MetadataStoreDistrusted = {
      above   = 0
      minutes = 1
      says    = "etcd went back or was replaced: docs/failures.md."
    }
    EtcdQuotaShare = {
      above   = 0.6
      minutes = 5
      says    = "etcd fills up; from 0.8 on agents refuse produce. The agents' log has the commands."
    }
    EventLoopLongestStall = {
      above   = 0.25
      minutes = 5
      says    = "An agent gets no core, or a request holds its loop: acknowledgements are late."
    }
    Overloaded = {
      above   = 0
      minutes = 15
      says    = "Producers wait for flushes or sealing: the group is at its largest size, or a bucket is slow."
    }
  }
}

resource "aws_cloudwatch_metric_alarm" "agents" {
  for_each = local.alarms

  alarm_name          = "${var.name}-${each.key}"
  alarm_description   = each.value.says
  namespace           = local.namespace
  metric_name         = each.key
  dimensions          = { Cluster = var.name }
  statistic           = "Maximum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = each.value.above
  period              = 60
  evaluation_periods  = each.value.minutes
  treat_missing_data  = "notBreaching" # LiveAgents tells of agents that send nothing.
  alarm_actions       = var.alarm_actions
  ok_actions          = var.alarm_actions
  tags                = var.tags
}

# As each agent sees it in etcd: the smallest count. No data at all is the worst case.
resource "aws_cloudwatch_metric_alarm" "live_agents" {
  alarm_name          = "${var.name}-LiveAgents"
  alarm_description   = "Fewer agents than the group has at least, or none tells: see the group's activity, then journalctl -u driftlog."
  namespace           = local.namespace
  metric_name         = "Agents"
  dimensions          = { Cluster = var.name }
  statistic           = "Minimum"
  comparison_operator = "LessThanThreshold"
  threshold           = var.agents
  period              = 60
  evaluation_periods  = 10
  treat_missing_data  = "breaching"
  alarm_actions       = var.alarm_actions
  ok_actions          = var.alarm_actions
  tags                = var.tags
}

# The second member that fails takes the quorum along: the first one is urgent. A member whose machine is
# well and whose etcd is not writes no snapshot.
resource "aws_cloudwatch_metric_alarm" "etcd_backups" {
  for_each = var.etcd_instance_ids

  alarm_name          = "${var.name}-EtcdBackups-${each.key}"
  alarm_description   = "A member of etcd has written no snapshot to the bucket for three hours. On it: journalctl -u cloud-final -u driftlog-etcd -u driftlog-etcd-backup."
  namespace           = local.namespace
  metric_name         = "EtcdBackups"
  dimensions          = { Cluster = var.name, Member = each.key }
  statistic           = "Sum"
  comparison_operator = "LessThanThreshold"
  threshold           = 1
  period              = 3600
  evaluation_periods  = 3
  treat_missing_data  = "breaching"
  alarm_actions       = var.alarm_actions
  ok_actions          = var.alarm_actions
  tags                = var.tags
}

resource "aws_cloudwatch_metric_alarm" "etcd_member" {
  for_each = var.etcd_instance_ids

  alarm_name          = "${var.name}-${each.key}"
  alarm_description   = "The machine of a member of etcd fails its checks. EC2 moves it to other hardware; if it does not come back, replace it (README of terraform/modules/metadata)."
  namespace           = "AWS/EC2"
  metric_name         = "StatusCheckFailed"
  dimensions          = { InstanceId = each.value }
  statistic           = "Maximum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  period              = 60
  evaluation_periods  = 3
  treat_missing_data  = "breaching"
  alarm_actions       = var.alarm_actions
  ok_actions          = var.alarm_actions
  tags                = var.tags
}

resource "aws_cloudwatch_metric_alarm" "bootstrap" {
  alarm_name          = "${var.name}-Bootstrap"
  alarm_description   = "A zone has no agent that answers: clients that begin there fail."
  namespace           = "AWS/NetworkELB"
  metric_name         = "HealthyHostCount"
  dimensions          = { TargetGroup = var.target_group_arn_suffix, LoadBalancer = var.load_balancer_arn_suffix }
  statistic           = "Minimum"
  comparison_operator = "LessThanThreshold"
  threshold           = 1
  period              = 60
  evaluation_periods  = 5
  treat_missing_data  = "breaching"
  alarm_actions       = var.alarm_actions
  ok_actions          = var.alarm_actions
  tags                = var.tags
}

locals {
  widgets = concat(
    [
      {
        title   = "Network out, a machine (scales the group)"
        stat    = "Average"
        metrics = [["AWS/EC2", "NetworkOut", "AutoScalingGroupName", var.autoscaling_group_name]]
      },
      {
        title   = "CPU, a machine (scales the group)"
        stat    = "Average"
        metrics = [["AWS/EC2", "CPUUtilization", "AutoScalingGroupName", var.autoscaling_group_name]]
      },
      {
        title   = "Agents in the group"
        stat    = "Average"
        metrics = [["AWS/AutoScaling", "GroupInServiceInstances", "AutoScalingGroupName", var.autoscaling_group_name]]
      },
      {
        title   = "Agents that others see"
        stat    = "Minimum"
        metrics = [[local.namespace, "Agents", "Cluster", var.name]]
      },
    ],
    length(var.etcd_instance_ids) == 0 ? [] : [{
      title   = "Snapshots of etcd"
      stat    = "Sum"
      metrics = [for member in keys(var.etcd_instance_ids) : [local.namespace, "EtcdBackups", "Cluster", var.name, "Member", member]]
    }],
    [for name, alarm in local.alarms : {
      title   = name
      stat    = "Maximum"
      metrics = [[local.namespace, name, "Cluster", var.name]]
    }],
  )
}

resource "aws_cloudwatch_dashboard" "this" {
  dashboard_name = var.name

  dashboard_body = jsonencode({
    widgets = [for i, widget in local.widgets : {
      type   = "metric"
      x      = (i % 3) * 8
      y      = floor(i / 3) * 6
      width  = 8
      height = 6
      properties = {
        title   = widget.title
        region  = data.aws_region.current.name
        view    = "timeSeries"
        stat    = widget.stat
        period  = 60
        metrics = widget.metrics
      }
    }]
  })
}
