# Agents: a group of machines over three zones, and a load balancer with which clients begin. A group
# whose agents only seal has none: it shares the security group of those that serve.

data "aws_region" "current" {}

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

data "aws_ec2_instance_type" "this" {
  instance_type = var.instance_type
}

locals {
  architecture = one([for a in data.aws_ec2_instance_type.this.supported_architectures : a if contains(["arm64", "x86_64"], a)])

  serves = contains(var.roles, "serve")
  group  = "${var.name}-${local.serves ? "agents" : "seal"}"
  hook   = "ready"

  arn_prefix = "arn:${data.aws_partition.current.partition}"
  bucket_arn = "${local.arn_prefix}:s3:::${var.bucket}"

  wheels = { for file in fileset(var.wheels_directory, "*.whl") : file => filesha256("${var.wheels_directory}/${file}") }

  # Ends of wheels that a machine installs: pure ones, and those compiled for its Python and its architecture.
  wheel_ends = "-(any|(cp312-cp312|cp3([2-9]|1[0-2])-abi3|(py2\\.)?py3-none)-(many)?linux[a-z0-9_.]*_${local.architecture == "arm64" ? "aarch64" : "x86_64"})\\.whl$"

  # Another wheel is another folder: a machine that starts while the next release is uploaded
  # installs one of the two, whole. The former folder stays until the group has the next template.
  wheels_prefix = "artifacts/driftlog/${local.group}/${substr(sha256(jsonencode(local.wheels)), 0, 16)}"

  # What each agent of the cluster has alike. What only the machine knows, its address and its zone,
  # comes as DRIFTLOG_* variables.
  #
  # Integers, fractions and booleans are TOML's own; TOML has no integer that begins with 0. Names of
  # configs are in quotes: without them a dot makes a table, and max.connections cannot be a value beside
  # max.connections.per.ip.
  agent_toml = join("\n", concat(
    [
      "store = ${jsonencode(var.location)}",
      "dir = \"/var/lib/driftlog/agent\"",
      "etcd = ${jsonencode(var.etcd_endpoints)}",
      "etcd-cacert = \"/etc/driftlog/tls/ca.pem\"",
      "etcd-cert = \"/etc/driftlog/tls/client.pem\"",
      "etcd-key = \"/etc/driftlog/tls/client-key.pem\"",
      "session-timeout-ms = ${var.session_timeout_ms}",
      "log-format = \"json\"",
    ],
    length(var.roles) == 1 ? ["roles = ${jsonencode(var.roles)}"] : [],
    [for name, value in var.broker_configs : "${jsonencode(name)} = ${can(regex("^(true|false|-?(0|[1-9][0-9]*)(\\.[0-9]+)?)$", value)) ? value : jsonencode(value)}"],
    [""],
  ))

  deploy = "${path.module}/../../../deploy/systemd"

  write_files = [
    { path = "/etc/systemd/system/driftlog.service", permissions = "0644", content = file("${local.deploy}/driftlog.service") },
    { path = "/etc/systemd/system/driftlog-metrics.service", permissions = "0644", content = file("${local.deploy}/driftlog-metrics.service") },
    { path = "/etc/systemd/system/driftlog-metrics.timer", permissions = "0644", content = file("${local.deploy}/driftlog-metrics.timer") },
    { path = "/usr/local/bin/driftlog-metrics", permissions = "0755", content = file("${local.deploy}/driftlog-metrics") },
    { path = "/usr/local/sbin/driftlog-boot", permissions = "0755", content = file("${path.module}/files/driftlog-boot") },
    { path = "/etc/driftlog/agent.toml", permissions = "0644", content = local.agent_toml },
    {
      path        = "/etc/driftlog/boot.env"
      permissions = "0644"
      content = join("\n", [
        "CLUSTER=${var.name}",
        "WHEELS=s3://${var.bucket}/${local.wheels_prefix}/",
        "CLIENT_CERTIFICATE=${var.etcd_client_certificate_parameter}",
        "GROUP=${local.group}",
        "HOOK=${local.hook}",
        "VOLUME_DEVICE=/dev/sdf",
        "export AWS_DEFAULT_REGION=${data.aws_region.current.name}",
        "",
      ])
    },
  ]

  # Known only after an apply where the module metadata makes them, so they are values and no keys.
  etcd_ports = [for url in var.etcd_endpoints : tonumber(regex("[0-9]+$", url))]

  # The event loop is one core of those; above nine tenths of it latency grows. Sealing, compaction and
  # merging have threads, which use all cores, and nobody waits for them.
  cpu_target_percent = local.serves ? min(90, floor(90 / data.aws_ec2_instance_type.this.default_vcpus)) : 70

  security_group_id = local.serves ? aws_security_group.agents[0].id : var.security_group_id

  # CloudWatch counts bytes a minute. Bursts above the baseline end after minutes.
  network_target_bytes = floor(var.network_baseline_mbit_s * 1000000 / 8 * 60 * 0.6)
}

data "aws_ssm_parameter" "ami" {
  name = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-${local.architecture}"
}

resource "aws_s3_object" "wheel" {
  for_each = local.wheels

  bucket      = var.bucket
  key         = "${local.wheels_prefix}/${each.key}"
  source      = "${var.wheels_directory}/${each.key}"
  source_hash = each.value
  tags        = var.tags

  lifecycle {
    create_before_destroy = true

    precondition {
      condition     = can(regex(local.wheel_ends, each.key))
      error_message = "${each.key} is for another system: ${var.instance_type} needs wheels for Python 3.12 on Linux, ${local.architecture}. docs/deploy.md says how to make them."
    }
  }
}

# ── Who reaches whom ──

resource "aws_security_group" "agents" {
  count = local.serves ? 1 : 0

  name        = local.group
  description = "Agents of driftlog"
  vpc_id      = var.vpc_id
  tags        = merge(var.tags, { Name = local.group })
}

resource "aws_security_group" "bootstrap" {
  count = local.serves ? 1 : 0

  name        = "${var.name}-bootstrap"
  description = "Load balancer with which Kafka clients begin"
  vpc_id      = var.vpc_id
  tags        = merge(var.tags, { Name = "${var.name}-bootstrap" })
}

resource "aws_vpc_security_group_ingress_rule" "clients" {
  for_each = { for pair in setproduct(["agents", "bootstrap"], toset(var.client_cidr_blocks)) : "${pair[0]} ${pair[1]}" => pair if local.serves }

  security_group_id = each.value[0] == "agents" ? aws_security_group.agents[0].id : aws_security_group.bootstrap[0].id
  description       = "Kafka clients"
  cidr_ipv4         = each.value[1]
  from_port         = 9092
  to_port           = 9092
  ip_protocol       = "tcp"
}

resource "aws_vpc_security_group_ingress_rule" "bootstrap" {
  for_each = { for name, port in { kafka = 9092, health = 9644 } : name => port if local.serves }

  security_group_id            = aws_security_group.agents[0].id
  description                  = "Load balancer: ${each.key}"
  referenced_security_group_id = aws_security_group.bootstrap[0].id
  from_port                    = each.value
  to_port                      = each.value
  ip_protocol                  = "tcp"
}

resource "aws_vpc_security_group_egress_rule" "bootstrap" {
  for_each = { for name, port in { kafka = 9092, health = 9644 } : name => port if local.serves }

  security_group_id            = aws_security_group.bootstrap[0].id
  description                  = "Agents: ${each.key}"
  referenced_security_group_id = aws_security_group.agents[0].id
  from_port                    = each.value
  to_port                      = each.value
  ip_protocol                  = "tcp"
}

resource "aws_vpc_security_group_ingress_rule" "agents" {
  for_each = { for name, port in { kafka = 9092, http = 9644 } : name => port if local.serves }

  security_group_id            = aws_security_group.agents[0].id
  description                  = "Agents among themselves: ${each.key}"
  referenced_security_group_id = aws_security_group.agents[0].id
  from_port                    = each.value
  to_port                      = each.value
  ip_protocol                  = "tcp"
}

resource "aws_vpc_security_group_ingress_rule" "operators" {
  for_each = toset(local.serves ? var.operator_cidr_blocks : [])

  security_group_id = aws_security_group.agents[0].id
  description       = "Metrics, health, sealing, imports"
  cidr_ipv4         = each.value
  from_port         = 9644
  to_port           = 9644
  ip_protocol       = "tcp"
}

# S3, endpoints of AWS services, etcd and the other agents. The subnets have no way to the internet.
resource "aws_vpc_security_group_egress_rule" "agents" {
  for_each = { for name, ports in { https = [443, 443], etcd = [min(local.etcd_ports...), max(local.etcd_ports...)], kafka = [9092, 9092], http = [9644, 9644] } : name => ports if local.serves }

  security_group_id = aws_security_group.agents[0].id
  description       = each.key
  cidr_ipv4         = "0.0.0.0/0"
  from_port         = each.value[0]
  to_port           = each.value[1]
  ip_protocol       = "tcp"
}

# ── What an agent's machine may do ──

data "aws_iam_policy_document" "trust" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

data "aws_iam_policy_document" "machine" {
  statement {
    sid       = "ReadWheels"
    actions   = ["s3:GetObject"]
    resources = ["${local.bucket_arn}/artifacts/driftlog/*"]
  }

  statement {
    sid       = "ReadCertificate"
    actions   = ["ssm:GetParameter"]
    resources = ["${local.arn_prefix}:ssm:${data.aws_region.current.name}:${data.aws_caller_identity.current.account_id}:parameter${var.etcd_client_certificate_parameter}"]
  }

  statement {
    sid       = "TellReady"
    actions   = ["autoscaling:CompleteLifecycleAction"]
    resources = ["${local.arn_prefix}:autoscaling:${data.aws_region.current.name}:${data.aws_caller_identity.current.account_id}:autoScalingGroup:*:autoScalingGroupName/${local.group}"]
  }

  statement {
    sid       = "Metrics"
    actions   = ["cloudwatch:PutMetricData"]
    resources = ["*"]

    condition {
      test     = "StringEquals"
      variable = "cloudwatch:namespace"
      values   = ["driftlog"]
    }
  }

  # Session Manager in place of SSH: no key, no open port. AWS' own policy for it reads each
  # parameter of the account.
  statement {
    sid = "SessionManager"
    actions = [
      "ssm:UpdateInstanceInformation",
      "ssmmessages:CreateControlChannel",
      "ssmmessages:CreateDataChannel",
      "ssmmessages:OpenControlChannel",
      "ssmmessages:OpenDataChannel",
    ]
    resources = ["*"]
  }
}

resource "aws_iam_role" "agents" {
  name                 = local.group
  assume_role_policy   = data.aws_iam_policy_document.trust.json
  permissions_boundary = var.permissions_boundary
  tags                 = var.tags
}

resource "aws_iam_role_policy" "machine" {
  name   = "machine"
  role   = aws_iam_role.agents.id
  policy = data.aws_iam_policy_document.machine.json
}

resource "aws_iam_role_policy_attachment" "bucket" {
  role       = aws_iam_role.agents.name
  policy_arn = var.bucket_policy_arn
}

resource "aws_iam_instance_profile" "agents" {
  name = local.group
  role = aws_iam_role.agents.name
  tags = var.tags
}

# ── The machines ──

resource "aws_launch_template" "agents" {
  name                   = local.group
  image_id               = coalesce(var.image_id, data.aws_ssm_parameter.ami.insecure_value)
  instance_type          = var.instance_type
  update_default_version = true
  ebs_optimized          = true
  vpc_security_group_ids = [local.security_group_id]
  user_data              = base64gzip("#cloud-config\n${jsonencode({ write_files = local.write_files, runcmd = [["/usr/local/sbin/driftlog-boot"]] })}")
  tags                   = var.tags

  iam_instance_profile {
    arn = aws_iam_instance_profile.agents.arn
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  monitoring {
    enabled = true
  }

  block_device_mappings {
    device_name = "/dev/xvda"

    ebs {
      volume_type           = "gp3"
      volume_size           = 16
      encrypted             = true
      delete_on_termination = true
    }
  }

  # Buffers and the cache of reads. A machine with NVMe of its own has no use for it.
  dynamic "block_device_mappings" {
    for_each = data.aws_ec2_instance_type.this.instance_storage_supported ? [] : [var.volume_gib]

    content {
      device_name = "/dev/sdf"

      ebs {
        volume_type           = "gp3"
        volume_size           = block_device_mappings.value
        throughput            = var.volume_throughput_mib_s
        iops                  = max(3000, 4 * var.volume_throughput_mib_s) # EC2 refuses more than 0.25 MiB/s for each
        encrypted             = true
        delete_on_termination = true
      }
    }
  }

  dynamic "tag_specifications" {
    for_each = toset(["instance", "volume", "network-interface"])

    content {
      resource_type = tag_specifications.value
      tags          = merge(var.tags, { Name = local.group })
    }
  }
}

resource "aws_autoscaling_group" "agents" {
  name                = local.group
  min_size            = var.min_size
  max_size            = var.max_size
  vpc_zone_identifier = [for zone, subnet in var.subnet_ids : subnet]
  target_group_arns   = aws_lb_target_group.agents[*].arn

  # An agent whose event loop stands still is replaced; one that waits for S3 or etcd is not. Without a
  # load balancer only the machine is looked at.
  health_check_type         = local.serves ? "ELB" : "EC2"
  health_check_grace_period = 300
  default_instance_warmup   = 60

  # Free of charge; the dashboard shows it.
  enabled_metrics = ["GroupInServiceInstances"]

  # The launch is over when the agent is ready, which apply need not wait for.
  wait_for_capacity_timeout = "0"

  # The oldest machine of the fullest zone first: those of an old launch template before others.
  termination_policies = ["OldestLaunchTemplate", "OldestInstance"]

  launch_template {
    id      = aws_launch_template.agents.id
    version = aws_launch_template.agents.latest_version
  }

  # A new agent is ready before an old one is ended, and one goes at a time of three; of those that only
  # seal all may, because leaders write their segments meanwhile. Ending a machine
  # shuts its system down: systemd sends SIGTERM, and the agent hands its partitions over.
  #
  # The load balancer may need minutes to send clients to a new agent, and a zone without a healthy one
  # has no address. So an old agent ends five minutes after its successor is in the group.
  #
  # AWS rolls back to what was last saved on the group, and Terraform saves the new template before it
  # starts the refresh: to the new template, that is. The former release is applied in its place.
  instance_refresh {
    strategy = "Rolling"

    preferences {
      min_healthy_percentage = 100
      max_healthy_percentage = local.serves ? 134 : 200
      instance_warmup        = 300
      auto_rollback          = false
    }
  }

  initial_lifecycle_hook {
    name                 = local.hook
    lifecycle_transition = "autoscaling:EC2_INSTANCE_LAUNCHING"
    default_result       = "ABANDON"
    heartbeat_timeout    = 900
  }

  dynamic "tag" {
    for_each = merge(var.tags, { Name = local.group })

    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = false
    }
  }

  lifecycle {
    # The policies below set it.
    ignore_changes = [desired_capacity]
  }

  depends_on = [
    aws_s3_object.wheel,
    aws_iam_role_policy.machine,
    aws_iam_role_policy_attachment.bucket,
    aws_vpc_security_group_egress_rule.agents,
    aws_vpc_security_group_ingress_rule.agents,
    aws_vpc_security_group_ingress_rule.bootstrap,
  ]
}

# Two policies: the group grows when one of them says so, and shrinks when both do.
resource "aws_autoscaling_policy" "network" {
  name                   = "${local.group}-network"
  autoscaling_group_name = aws_autoscaling_group.agents.name
  policy_type            = "TargetTrackingScaling"

  target_tracking_configuration {
    target_value = local.network_target_bytes

    predefined_metric_specification {
      predefined_metric_type = local.serves ? "ASGAverageNetworkOut" : "ASGAverageNetworkIn"
    }
  }
}

resource "aws_autoscaling_policy" "cpu" {
  name                   = "${local.group}-cpu"
  autoscaling_group_name = aws_autoscaling_group.agents.name
  policy_type            = "TargetTrackingScaling"

  target_tracking_configuration {
    target_value = local.cpu_target_percent

    predefined_metric_specification {
      predefined_metric_type = "ASGAverageCPUUtilization"
    }
  }
}

# ── Where clients begin ──
#
# Agents advertise their own addresses: the balancer answers only a client's first request, and no
# record passes it. Each zone has an address of its own, which leads to agents of that zone.

resource "aws_lb" "bootstrap" {
  count = local.serves ? 1 : 0

  name                             = "${var.name}-bootstrap"
  load_balancer_type               = "network"
  internal                         = true
  subnets                          = [for zone, subnet in var.subnet_ids : subnet]
  security_groups                  = [aws_security_group.bootstrap[0].id]
  enable_cross_zone_load_balancing = false
  enable_deletion_protection       = var.deletion_protection
  tags                             = var.tags
}

resource "aws_lb_target_group" "agents" {
  count = local.serves ? 1 : 0

  name                 = local.group
  port                 = 9092
  protocol             = "TCP"
  vpc_id               = var.vpc_id
  deregistration_delay = 30
  tags                 = var.tags

  health_check {
    protocol            = "HTTP"
    port                = "9644"
    path                = "/healthz"
    interval            = 10
    healthy_threshold   = 2
    unhealthy_threshold = 3
  }
}

resource "aws_lb_listener" "kafka" {
  count = local.serves ? 1 : 0

  load_balancer_arn = aws_lb.bootstrap[0].arn
  port              = 9092
  protocol          = "TCP"
  tags              = var.tags

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.agents[0].arn
  }
}
