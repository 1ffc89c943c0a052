# The rules of etcd's members. The provider is real, because it renders the policies; nothing is asked of AWS.

provider "aws" {
  region                      = "eu-central-1"
  access_key                  = "none"
  secret_key                  = "none"
  skip_credentials_validation = true
  skip_metadata_api_check     = true
  skip_requesting_account_id  = true
}

override_data {
  target = data.aws_caller_identity.current
  values = { account_id = "123456789012" }
}

override_data {
  target = data.aws_ssm_parameter.ami
  values = { insecure_value = "ami-12345678" }
}

override_data {
  target = data.aws_ec2_instance_type.this
  values = { supported_architectures = ["arm64"], default_vcpus = 1, instance_storage_supported = false }
}

variables {
  name                      = "a"
  vpc_id                    = "vpc-1"
  subnet_ids                = { eu-central-1a = "subnet-a", eu-central-1b = "subnet-b", eu-central-1c = "subnet-c" }
  client_security_group_ids = { agents = "sg-1" }
  bucket                    = "a-log"
  etcd_release_file         = "tests/etcd-v3.6.16-linux-arm64.tar.gz"
}

run "three_members_in_three_zones_on_volumes_of_their_own" {
  command = plan

  assert {
    condition     = length(aws_instance.this) == 3 && length(distinct([for volume in aws_ebs_volume.this : volume.availability_zone])) == 3
    error_message = "A member and its volume stand in each zone."
  }

  assert {
    condition     = alltrue([for volume in aws_ebs_volume.this : volume.encrypted && volume.type == "gp3"])
    error_message = "Volumes are encrypted."
  }

  assert {
    condition     = alltrue([for machine in aws_instance.this : machine.metadata_options[0].http_tokens == "required"])
    error_message = "A machine answers only IMDSv2."
  }
}

run "only_clients_and_members_reach_it" {
  command = plan

  assert {
    condition     = alltrue([for rule in aws_vpc_security_group_ingress_rule.clients : rule.cidr_ipv4 == null && rule.from_port == 2379 && rule.to_port == 2379])
    error_message = "Clients come by their group, to the clients' port only."
  }

  assert {
    condition     = aws_vpc_security_group_ingress_rule.members.cidr_ipv4 == null
    error_message = "The peers' port is open to members only."
  }
}

run "a_member_may_do_only_this" {
  command = plan

  assert {
    condition = { for s in jsondecode(data.aws_iam_policy_document.member.json).Statement : s.Sid => join(" ", concat(s.Effect == "Allow" ? [] : [s.Effect], sort(flatten([s.Action])), sort(flatten([s.Resource])))) } == {
      ReadRelease    = "s3:GetObject arn:aws:s3:::a-log/artifacts/etcd/etcd-v3.6.16-linux-arm64.tar.gz"
      WriteBackups   = "s3:AbortMultipartUpload s3:GetObject s3:PutObject arn:aws:s3:::a-log/backups/etcd/*"
      Secrets        = "ssm:GetParameter ssm:PutParameter arn:aws:ssm:eu-central-1:123456789012:parameter/a/etcd/*"
      NoOverwrite    = "Deny ssm:PutParameter *"
      BackupMetric   = "cloudwatch:PutMetricData *"
      SessionManager = "ssm:UpdateInstanceInformation ssmmessages:CreateControlChannel ssmmessages:CreateDataChannel ssmmessages:OpenControlChannel ssmmessages:OpenDataChannel *"
    }
    error_message = "A member reads its release, writes backups, and has its secrets: never the log."
  }
}

run "refuses_a_name_that_aws_does_not_take" {
  command         = plan
  expect_failures = [var.name]

  variables {
    name = "sg-logs"
  }
}

# One run for all of them: each must be refused, or the run fails.
run "refuses_each_of_these" {
  command         = plan
  expect_failures = [var.name, var.subnet_ids, var.client_security_group_ids, var.etcd_release_file, var.volume_gib]

  variables {
    # a name that the Parameter Store refuses
    name = "ssmith"
    # two zones
    subnet_ids = { eu-central-1a = "subnet-a", eu-central-1b = "subnet-b" }
    # to stand without clients
    client_security_group_ids = {}
    # an old release
    etcd_release_file = "tests/etcd-v3.5.1-linux-arm64.tar.gz"
    # a small volume
    volume_gib = 8
  }
}

run "refuses_a_release_for_another_architecture" {
  command         = plan
  expect_failures = [aws_s3_object.release]

  override_data {
    target = data.aws_ec2_instance_type.this
    values = { supported_architectures = ["x86_64"], default_vcpus = 2, instance_storage_supported = false }
  }
}
