# The rules of alarms and the dashboard. Nothing is asked of AWS.

provider "aws" {
  region                      = "eu-central-1"
  access_key                  = "none"
  secret_key                  = "none"
  skip_credentials_validation = true
  skip_metadata_api_check     = true
  skip_requesting_account_id  = true
}

variables {
  name                     = "a"
  agents                   = 3
  autoscaling_group_name   = "a-agents"
  target_group_arn_suffix  = "targetgroup/a-agents/1"
  load_balancer_arn_suffix = "net/a-bootstrap/1"
  etcd_instance_ids        = { etcd-1 = "i-1", etcd-2 = "i-2", etcd-3 = "i-3" }
  alarm_actions            = ["arn:aws:sns:eu-central-1:123456789012:page"]
}

run "silence_is_an_alarm" {
  command = plan

  assert {
    condition     = alltrue([for alarm in concat([aws_cloudwatch_metric_alarm.live_agents, aws_cloudwatch_metric_alarm.bootstrap], values(aws_cloudwatch_metric_alarm.etcd_backups)) : alarm.treat_missing_data == "breaching"])
    error_message = "A cluster that sends nothing raises alarms."
  }

  assert {
    condition     = aws_cloudwatch_metric_alarm.live_agents.threshold == 3
    error_message = "Fewer agents than the group has at least raise an alarm."
  }
}

run "each_alarm_calls_and_says_what_to_do" {
  command = plan

  assert {
    condition     = alltrue([for alarm in aws_cloudwatch_metric_alarm.agents : length(alarm.alarm_description) > 40 && contains(alarm.alarm_actions, "arn:aws:sns:eu-central-1:123456789012:page")])
    error_message = "Each alarm has an action and a sentence."
  }

  assert {
    condition     = length(aws_cloudwatch_metric_alarm.etcd_member) == 3
    error_message = "Each member of etcd has an alarm on its machine."
  }

  assert {
    condition     = { for member, alarm in aws_cloudwatch_metric_alarm.etcd_backups : member => alarm.dimensions } == { for member in ["etcd-1", "etcd-2", "etcd-3"] : member => tomap({ Cluster = "a", Member = member }) }
    error_message = "Each member of etcd has an alarm on its snapshots: two that write some do not hide a third that writes none."
  }
}

run "each_alarm_is_on_the_dashboard" {
  command = plan

  assert {
    condition = alltrue([for name in keys(aws_cloudwatch_metric_alarm.agents) : anytrue([
      for widget in jsondecode(aws_cloudwatch_dashboard.this.dashboard_body).widgets : widget.properties.metrics[0][1] == name
    ])])
    error_message = "Each alarm's metric has a panel."
  }
}

run "an_etcd_of_your_own_has_no_alarms_here" {
  command = plan

  variables {
    etcd_instance_ids = {}
  }

  assert {
    condition     = !anytrue([for name in output.alarm_names : strcontains(name, "etcd-") || strcontains(name, "EtcdBackups")]) && !strcontains(aws_cloudwatch_dashboard.this.dashboard_body, "EtcdBackups")
    error_message = "It sends no snapshots to this bucket, so an alarm on them would never return to OK."
  }
}

# One run for all of them: each must be refused, or the run fails.
run "refuses_each_of_these" {
  command         = plan
  expect_failures = [var.alarm_actions, var.agents]

  variables {
    # an action that is no arn
    alarm_actions = ["page"]
    # a cluster without agents
    agents = 0
  }
}
