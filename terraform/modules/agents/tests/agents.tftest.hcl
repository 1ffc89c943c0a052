# The rules of the agents. The provider is real, because it renders the policies; nothing is asked of AWS.

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
  values = { supported_architectures = ["x86_64"], default_vcpus = 2, instance_storage_supported = false }
}

variables {
  name                              = "a"
  vpc_id                            = "vpc-1"
  subnet_ids                        = { eu-central-1a = "subnet-a", eu-central-1b = "subnet-b", eu-central-1c = "subnet-c" }
  client_cidr_blocks                = ["10.0.0.0/8"]
  bucket                            = "a-log"
  location                          = "s3://a-log/log"
  bucket_policy_arn                 = "arn:aws:iam::123456789012:policy/a-log-agent"
  wheels_directory                  = "tests/wheels"
  etcd_endpoints                    = ["https://10.80.0.4:2379", "https://10.80.2.4:2379", "https://10.80.4.4:2379"]
  etcd_client_certificate_parameter = "/a/etcd/client"
}

run "machines_are_closed_and_encrypted" {
  command = plan

  assert {
    condition     = aws_launch_template.agents.metadata_options[0].http_tokens == "required" && aws_launch_template.agents.metadata_options[0].http_put_response_hop_limit == 1
    error_message = "A machine answers only IMDSv2, and only itself."
  }

  assert {
    condition     = alltrue([for disk in aws_launch_template.agents.block_device_mappings : disk.ebs[0].encrypted == "true" && disk.ebs[0].volume_type == "gp3"])
    error_message = "Volumes are encrypted gp3."
  }

  assert {
    condition     = length(aws_launch_template.agents.block_device_mappings) == 2 && aws_launch_template.agents.image_id == "ami-12345678"
    error_message = "A machine without a disk of its own gets a volume for buffers, and the newest image."
  }

  assert {
    condition     = aws_lb.bootstrap[0].internal
    error_message = "The load balancer is on private subnets."
  }

  assert {
    condition     = alltrue([for rule in aws_vpc_security_group_ingress_rule.clients : rule.cidr_ipv4 == "10.0.0.0/8" && rule.to_port == 9092])
    error_message = "Listeners are open to clients' addresses only."
  }

  assert {
    condition     = length(aws_vpc_security_group_ingress_rule.operators) == 0
    error_message = "The HTTP port has no authentication: it is open to addresses that were named only."
  }
}

run "agents_reach_etcd_at_its_ports" {
  command = plan

  variables {
    etcd_endpoints = ["https://a.example:2379", "https://b.example:2381"]
  }

  assert {
    condition     = aws_vpc_security_group_egress_rule.agents["etcd"].from_port == 2379 && aws_vpc_security_group_egress_rule.agents["etcd"].to_port == 2381
    error_message = "An etcd that exists may have other ports."
  }
}

run "an_image_that_was_given_stays" {
  command = plan

  variables {
    image_id = "ami-0123456789abcdef0"
  }

  assert {
    condition     = aws_launch_template.agents.image_id == "ami-0123456789abcdef0"
    error_message = "A new image of Amazon Linux refreshes the group only where no image was given."
  }
}

run "ec2_takes_the_largest_throughput_of_a_volume" {
  command = plan

  variables {
    volume_throughput_mib_s = 1000
  }

  assert {
    condition     = [for disk in aws_launch_template.agents.block_device_mappings : disk.ebs[0].iops if disk.device_name == "/dev/sdf"] == [4000]
    error_message = "A gp3 volume has 3000 requests a second, and for each at most a quarter of 1 MiB/s."
  }
}

run "a_machine_with_a_disk_gets_no_volume" {
  command = plan

  override_data {
    target = data.aws_ec2_instance_type.this
    values = { supported_architectures = ["x86_64"], default_vcpus = 2, instance_storage_supported = true }
  }

  assert {
    condition     = length(aws_launch_template.agents.block_device_mappings) == 1
    error_message = "Buffers are on the NVMe of the machine."
  }
}

run "a_refresh_starts_an_agent_before_it_ends_one" {
  command = plan

  assert {
    condition     = aws_autoscaling_group.agents.instance_refresh[0].preferences[0].min_healthy_percentage == 100 && aws_autoscaling_group.agents.instance_refresh[0].preferences[0].max_healthy_percentage < 167
    error_message = "Of three agents one goes at a time, after its successor is ready."
  }

  assert {
    condition     = tonumber(aws_autoscaling_group.agents.instance_refresh[0].preferences[0].instance_warmup) >= 300
    error_message = "The load balancer has minutes to begin with a new agent before the zone's old one ends."
  }

  assert {
    condition     = one(aws_autoscaling_group.agents.initial_lifecycle_hook).default_result == "ABANDON"
    error_message = "An agent that never becomes ready is replaced, and the refresh stops."
  }

  assert {
    condition     = !aws_autoscaling_group.agents.instance_refresh[0].preferences[0].auto_rollback
    error_message = "A rollback would go to the template that Terraform has just saved, which is the new one."
  }
}

run "the_group_grows_with_what_limits_an_agent" {
  command = plan

  assert {
    condition     = aws_autoscaling_policy.cpu.target_tracking_configuration[0].target_value == 45
    error_message = "Of two cores the event loop has one: 45 % is nine tenths of it."
  }

  assert {
    condition     = aws_autoscaling_policy.network.target_tracking_configuration[0].target_value == 3514500000
    error_message = "Six tenths of the baseline, in bytes a minute."
  }
}

run "each_agent_has_the_same_configuration" {
  command = plan

  variables {
    broker_configs = { "log.retention.hours" = "72", "auto.create.topics.enable" = "true", "max.connections" = "5000", "max.connections.per.ip" = "500", "max.connections.per.ip.overrides" = "10.0.0.9:50", "compression.lz4.level" = "007", "log.cleaner.min.cleanable.ratio" = "0.5" }
  }

  assert {
    condition     = output.agent_toml == <<-END
      store = "s3://a-log/log"
      dir = "/var/lib/driftlog/agent"
      etcd = ["https://10.80.0.4:2379","https://10.80.2.4:2379","https://10.80.4.4:2379"]
      etcd-cacert = "/etc/driftlog/tls/ca.pem"
      etcd-cert = "/etc/driftlog/tls/client.pem"
      etcd-key = "/etc/driftlog/tls/client-key.pem"
      session-timeout-ms = 6000
      log-format = "json"
      "auto.create.topics.enable" = true
      "compression.lz4.level" = "007"
      "log.cleaner.min.cleanable.ratio" = 0.5
      "log.retention.hours" = 72
      "max.connections" = 5000
      "max.connections.per.ip" = 500
      "max.connections.per.ip.overrides" = "10.0.0.9:50"
    END
    error_message = "Numbers and booleans are TOML's, everything else is a string. Names are quoted: one may begin another."
  }
}

run "a_machine_may_do_only_this" {
  command = plan

  assert {
    condition = { for s in jsondecode(data.aws_iam_policy_document.machine.json).Statement : s.Sid => join(" ", concat(sort(flatten([s.Action])), flatten([s.Resource]))) } == {
      ReadWheels      = "s3:GetObject arn:aws:s3:::a-log/artifacts/driftlog/*"
      ReadCertificate = "ssm:GetParameter arn:aws:ssm:eu-central-1:123456789012:parameter/a/etcd/client"
      TellReady       = "autoscaling:CompleteLifecycleAction arn:aws:autoscaling:eu-central-1:123456789012:autoScalingGroup:*:autoScalingGroupName/a-agents"
      Metrics         = "cloudwatch:PutMetricData *"
      SessionManager  = "ssm:UpdateInstanceInformation ssmmessages:CreateControlChannel ssmmessages:CreateDataChannel ssmmessages:OpenControlChannel ssmmessages:OpenDataChannel *"
    }
    error_message = "Beside the bucket, a machine reads its wheels and one certificate, and tells that it is ready."
  }
}

run "agents_that_only_seal_have_no_clients" {
  command = plan

  variables {
    roles              = ["seal"]
    security_group_id  = "sg-1"
    client_cidr_blocks = []
    min_size           = 1
    max_size           = 4
  }

  assert {
    condition     = length(aws_lb.bootstrap) + length(aws_lb_listener.kafka) + length(aws_lb_target_group.agents) == 0 && aws_autoscaling_group.agents.health_check_type == "EC2"
    error_message = "No client begins with an agent that leads nothing, so the machine alone is looked at."
  }

  assert {
    condition     = length(aws_security_group.agents) + length(aws_security_group.bootstrap) + length(aws_vpc_security_group_ingress_rule.clients) + length(aws_vpc_security_group_ingress_rule.agents) + length(aws_vpc_security_group_egress_rule.agents) == 0 && toset(aws_launch_template.agents.vpc_security_group_ids) == toset(["sg-1"])
    error_message = "Leaders reach them as they reach each other: by the rules of one group."
  }

  assert {
    condition     = aws_autoscaling_group.agents.name == "a-seal" && aws_iam_role.agents.name == "a-seal"
    error_message = "Both groups are in one account."
  }

  assert {
    condition     = aws_autoscaling_policy.cpu.target_tracking_configuration[0].target_value == 70 && aws_autoscaling_policy.network.target_tracking_configuration[0].predefined_metric_specification[0].predefined_metric_type == "ASGAverageNetworkIn"
    error_message = "Threads that compress use all cores, and what is sealed comes over the network before it goes there."
  }

  assert {
    condition     = strcontains(output.agent_toml, "\nroles = [\"seal\"]\n") && output.bootstrap_servers == null && output.security_group_id == "sg-1"
    error_message = "The agents' configuration has their role."
  }
}

run "agents_that_only_serve_are_found_as_all_are" {
  command = plan

  variables {
    roles = ["serve"]
  }

  assert {
    condition     = strcontains(output.agent_toml, "\nroles = [\"serve\"]\n") && aws_autoscaling_group.agents.name == "a-agents" && length(aws_lb.bootstrap) == 1
    error_message = "Only the role differs."
  }
}

run "refuses_agents_that_seal_without_a_group_that_serves" {
  command         = plan
  expect_failures = [var.security_group_id, var.min_size]

  variables {
    roles    = ["seal"]
    min_size = 0
  }
}

run "refuses_a_role_that_is_none" {
  command         = plan
  expect_failures = [var.roles]

  variables {
    roles = ["serve", "lead"]
  }
}

run "refuses_agents_that_serve_with_the_security_group_of_others_or_without_clients" {
  command         = plan
  expect_failures = [var.security_group_id, var.client_cidr_blocks]

  variables {
    security_group_id  = "sg-1"
    client_cidr_blocks = []
  }
}

run "refuses_wheels_for_another_architecture" {
  command         = plan
  expect_failures = [aws_s3_object.wheel]

  override_data {
    target = data.aws_ec2_instance_type.this
    values = { supported_architectures = ["arm64"], default_vcpus = 2, instance_storage_supported = false }
  }
}

run "refuses_wheels_for_another_python" {
  command         = plan
  expect_failures = [aws_s3_object.wheel]

  variables {
    wheels_directory = "tests/wheels-of-another-python"
  }
}

run "refuses_a_name_that_aws_does_not_take" {
  command         = plan
  expect_failures = [var.name]

  variables {
    name = "internal"
  }
}

# One run for all of them: each must be refused, or the run fails.
run "refuses_each_of_these" {
  command         = plan
  expect_failures = [var.client_cidr_blocks, var.operator_cidr_blocks, var.min_size, var.etcd_endpoints, var.wheels_directory, var.broker_configs, var.volume_throughput_mib_s, var.image_id]

  variables {
    # the internet as a client
    client_cidr_blocks = ["0.0.0.0/0"]
    # the internet as an operator
    operator_cidr_blocks = ["0.0.0.0/0"]
    # two agents
    min_size = 2
    # etcd without tls
    etcd_endpoints = ["http://10.80.0.4:2379"]
    # a directory without driftlog
    wheels_directory = "tests"
    # a name that is no config
    broker_configs = { "store = x" = "y" }
    # a name of an image
    image_id = "al2023"
    # slow volumes
    volume_throughput_mib_s = 60
  }
}

run "refuses_each_of_these_too" {
  command         = plan
  expect_failures = [var.client_cidr_blocks, var.operator_cidr_blocks, var.etcd_endpoints, var.max_size]

  variables {
    # a public address of a client
    client_cidr_blocks = ["10.0.0.0/8", "52.1.2.0/24"]
    # addresses that are public in part
    operator_cidr_blocks = ["192.168.0.0/13"]
    # to stand without etcd
    etcd_endpoints = []
    # a group that cannot refresh: the smallest size is 3
    max_size = 3
  }
}

run "refuses_addresses_that_are_public_in_part_and_ports_that_are_taken" {
  command         = plan
  expect_failures = [var.client_cidr_blocks, var.etcd_endpoints]

  variables {
    client_cidr_blocks = ["172.16.0.0/8"]
    etcd_endpoints     = ["https://etcd.example:443"]
  }
}

run "takes_private_addresses_of_all_kinds_and_one_twice" {
  command = plan

  variables {
    client_cidr_blocks = ["10.1.2.3/32", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "10.1.2.3/32"]
  }

  assert {
    condition     = length(aws_vpc_security_group_ingress_rule.clients) == 8
    error_message = "Each opens the agents and the load balancer, once."
  }
}
