# Three members of etcd in three zones. A member is an address (an interface), its data (a volume) and
# a machine; the machine can be replaced, and finds the other two.

data "aws_region" "current" {}

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

data "aws_ec2_instance_type" "this" {
  instance_type = var.instance_type
}

locals {
  architecture   = one([for a in data.aws_ec2_instance_type.this.supported_architectures : a if contains(["arm64", "x86_64"], a)])
  release_suffix = local.architecture == "arm64" ? "arm64" : "amd64"

  zones   = sort(keys(var.subnet_ids))
  members = { for i, zone in local.zones : zone => "etcd-${i + 1}" }

  parameters = "/${var.name}/etcd"
  arn_prefix = "arn:${data.aws_partition.current.partition}"
  bucket_arn = "${local.arn_prefix}:s3:::${var.bucket}"
  release    = "artifacts/etcd/${basename(var.etcd_release_file)}"
  backups    = "backups/etcd"

  files = {
    "/etc/systemd/system/driftlog-etcd.service"        = "driftlog-etcd.service"
    "/etc/systemd/system/driftlog-etcd-backup.service" = "driftlog-etcd-backup.service"
    "/etc/systemd/system/driftlog-etcd-backup.timer"   = "driftlog-etcd-backup.timer"
    "/usr/local/bin/driftlog-etcd"                     = "driftlog-etcd"
    "/usr/local/sbin/etcd-boot"                        = "etcd-boot"
  }
}

data "aws_ssm_parameter" "ami" {
  name = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-${local.architecture}"
}

resource "aws_s3_object" "release" {
  bucket      = var.bucket
  key         = local.release
  source      = var.etcd_release_file
  source_hash = filesha256(var.etcd_release_file)
  tags        = var.tags

  lifecycle {
    precondition {
      condition     = endswith(var.etcd_release_file, "-linux-${local.release_suffix}.tar.gz")
      error_message = "${var.instance_type} needs etcd's release for linux-${local.release_suffix}."
    }
  }
}

# ── Who reaches whom ──

resource "aws_security_group" "this" {
  name        = "${var.name}-etcd"
  description = "Members of etcd"
  vpc_id      = var.vpc_id
  tags        = merge(var.tags, { Name = "${var.name}-etcd" })
}

resource "aws_vpc_security_group_ingress_rule" "clients" {
  for_each = var.client_security_group_ids

  security_group_id            = aws_security_group.this.id
  description                  = "Clients: ${each.key}"
  referenced_security_group_id = each.value
  from_port                    = 2379
  to_port                      = 2379
  ip_protocol                  = "tcp"
}

resource "aws_vpc_security_group_ingress_rule" "members" {
  security_group_id            = aws_security_group.this.id
  description                  = "Members among themselves"
  referenced_security_group_id = aws_security_group.this.id
  from_port                    = 2379
  to_port                      = 2380
  ip_protocol                  = "tcp"
}

resource "aws_vpc_security_group_egress_rule" "members" {
  security_group_id            = aws_security_group.this.id
  description                  = "Members among themselves"
  referenced_security_group_id = aws_security_group.this.id
  from_port                    = 2379
  to_port                      = 2380
  ip_protocol                  = "tcp"
}

# S3's gateway has the addresses of S3, so this cannot be narrower without its prefix list; the
# subnets have no way to the internet.
resource "aws_vpc_security_group_egress_rule" "https" {
  security_group_id = aws_security_group.this.id
  description       = "S3 and endpoints of AWS services"
  cidr_ipv4         = "0.0.0.0/0"
  from_port         = 443
  to_port           = 443
  ip_protocol       = "tcp"
}

# ── What a member may do ──

data "aws_iam_policy_document" "trust" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

data "aws_iam_policy_document" "member" {
  statement {
    sid       = "ReadRelease"
    actions   = ["s3:GetObject"]
    resources = ["${local.bucket_arn}/${local.release}"]
  }

  statement {
    sid       = "WriteBackups"
    actions   = ["s3:PutObject", "s3:GetObject", "s3:AbortMultipartUpload"]
    resources = ["${local.bucket_arn}/${local.backups}/*"]
  }

  statement {
    sid       = "Secrets"
    actions   = ["ssm:GetParameter", "ssm:PutParameter"]
    resources = ["${local.arn_prefix}:ssm:${data.aws_region.current.name}:${data.aws_caller_identity.current.account_id}:parameter${local.parameters}/*"]
  }

  # A secret is created and never replaced.
  statement {
    sid       = "NoOverwrite"
    effect    = "Deny"
    actions   = ["ssm:PutParameter"]
    resources = ["*"]

    condition {
      test     = "StringEquals"
      variable = "ssm:Overwrite"
      values   = ["true"]
    }
  }

  statement {
    sid       = "BackupMetric"
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

resource "aws_iam_role" "this" {
  name                 = "${var.name}-etcd"
  assume_role_policy   = data.aws_iam_policy_document.trust.json
  permissions_boundary = var.permissions_boundary
  tags                 = var.tags
}

resource "aws_iam_role_policy" "member" {
  name   = "member"
  role   = aws_iam_role.this.id
  policy = data.aws_iam_policy_document.member.json
}

resource "aws_iam_instance_profile" "this" {
  name = "${var.name}-etcd"
  role = aws_iam_role.this.name
  tags = var.tags
}

# ── The members ──

resource "aws_network_interface" "this" {
  for_each = local.members

  subnet_id       = var.subnet_ids[each.key]
  security_groups = [aws_security_group.this.id]
  description     = "${var.name} ${each.value}"
  tags            = merge(var.tags, { Name = "${var.name}-${each.value}" })
}

resource "aws_ebs_volume" "this" {
  for_each = local.members

  availability_zone = each.key
  size              = var.volume_gib
  type              = "gp3"
  encrypted         = true
  tags              = merge(var.tags, { Name = "${var.name}-${each.value}" })
}

locals {
  addresses = join(",", [for zone, member in local.members : "${member}=${aws_network_interface.this[zone].private_ip}"])

  # What a member is, by its zone.
  member_env = { for zone, member in local.members : zone => join("\n", [
    "CLUSTER=${var.name}",
    "MEMBER=${member}",
    "MEMBERS=${local.addresses}",
    "PARAMETERS=${local.parameters}",
    "BACKUPS=s3://${var.bucket}/${local.backups}",
    "DATA=/var/lib/etcd/data",
    "CERTIFICATES=/var/lib/etcd/certificates",
    "AWS_DEFAULT_REGION=${data.aws_region.current.name}",
    "",
  ]) }

  # What its machine needs to become it.
  boot_env = { for zone, member in local.members : zone => join("\n", [
    "RELEASE=s3://${var.bucket}/${local.release}",
    "RELEASE_SHA256=${filesha256(var.etcd_release_file)}",
    "VOLUME=${aws_ebs_volume.this[zone].id}",
    "export AWS_DEFAULT_REGION=${data.aws_region.current.name}",
    "",
  ]) }

  scripts = [for target, name in local.files : {
    path        = target
    permissions = startswith(target, "/usr/") ? "0755" : "0644"
    content     = file("${path.module}/files/${name}")
  }]

  cloud_config = { for zone, member in local.members : zone => {
    write_files = concat(local.scripts, [
      { path = "/etc/driftlog-etcd/member.env", permissions = "0644", content = local.member_env[zone] },
      { path = "/etc/driftlog-etcd/boot.env", permissions = "0644", content = local.boot_env[zone] },
    ])
    # A machine that is not replaced must not stop at one answer that does not come.
    runcmd = [["/bin/bash", "-c", "until /usr/local/sbin/etcd-boot; do sleep 10; done"]]
  } }
}

resource "aws_instance" "this" {
  for_each = local.members

  ami                  = data.aws_ssm_parameter.ami.insecure_value
  instance_type        = var.instance_type
  iam_instance_profile = aws_iam_instance_profile.this.name
  monitoring           = true
  ebs_optimized        = true

  network_interface {
    network_interface_id = aws_network_interface.this[each.key].id
    device_index         = 0
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  root_block_device {
    volume_type = "gp3"
    volume_size = 16
    encrypted   = true
  }

  user_data_base64 = base64gzip("#cloud-config\n${jsonencode(local.cloud_config[each.key])}")

  tags        = merge(var.tags, { Name = "${var.name}-${each.value}" })
  volume_tags = merge(var.tags, { Name = "${var.name}-${each.value}-root" })

  depends_on = [
    aws_s3_object.release,
    aws_iam_role_policy.member,
    aws_vpc_security_group_egress_rule.https,
    aws_vpc_security_group_egress_rule.members,
    aws_vpc_security_group_ingress_rule.members,
  ]

  lifecycle {
    # A newer image, another user data or another type changes no member by itself: three at once would be
    # the end of the quorum. For another type the provider would stop all members, in place. `terraform
    # apply -replace` does it, one member at a time.
    ignore_changes = [ami, instance_type, user_data_base64, volume_tags]
  }
}

resource "aws_volume_attachment" "this" {
  for_each = local.members

  device_name                    = "/dev/sdf"
  volume_id                      = aws_ebs_volume.this[each.key].id
  instance_id                    = aws_instance.this[each.key].id
  stop_instance_before_detaching = true
}
