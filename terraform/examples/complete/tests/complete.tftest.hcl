# What the example's variables refuse, and which groups it makes. Nothing is asked of AWS: the modules'
# own tests look at what they make.

mock_provider "aws" {
  mock_data "aws_iam_policy_document" {
    defaults = { json = "{\"Version\":\"2012-10-17\",\"Statement\":[]}" }
  }

  mock_data "aws_ec2_instance_type" {
    defaults = { supported_architectures = ["x86_64"], default_vcpus = 2, instance_storage_supported = false }
  }
}

override_data {
  target = module.metadata.data.aws_ec2_instance_type.this
  values = { supported_architectures = ["arm64"], default_vcpus = 1, instance_storage_supported = false }
}

variables {
  region             = "eu-central-1"
  availability_zones = ["eu-central-1a", "eu-central-1b", "eu-central-1c"]
  bucket             = "a-log"
  wheels_directory   = "../../modules/agents/tests/wheels"
  etcd_release_file  = "../../modules/metadata/tests/etcd-v3.6.16-linux-arm64.tar.gz"
}

run "each_agent_does_both_unless_told" {
  command = plan

  assert {
    condition     = length(module.seal_agents) == 0 && module.agents.autoscaling_group_name == "driftlog-agents"
    error_message = "One group, of agents that serve and seal."
  }
}

run "agents_that_only_seal_are_a_group_beside_it" {
  command = plan

  variables {
    seal_max_size = 3
  }

  assert {
    condition     = one(module.seal_agents[*].autoscaling_group_name) == "driftlog-seal"
    error_message = "A second group, under its own name."
  }
}

run "the_network_of_the_cluster_may_be_one_of_its_clients" {
  command = plan

  variables {
    client_cidr_blocks = ["10.80.0.0/20", "10.0.0.0/16"]
  }

  assert {
    condition     = module.agents.autoscaling_group_name == "driftlog-agents"
    error_message = "Machines of the VPC reach the HTTP port only where its block is named."
  }
}

# One run for all of them: each must be refused, or the run fails. A variable that is held against
# another one is in the second run: it is not looked at when that other one is wrong.
run "refuses_each_of_these" {
  command = plan
  expect_failures = [
    var.name, var.region, var.bucket, var.wheels_directory, var.etcd_release_file, var.cidr_block,
    var.agent_instance_type, var.agent_image_id, var.etcd_instance_type, var.client_cidr_blocks, var.reader_principals, var.writer_principals,
    var.min_size, var.seal_min_size, var.broker_configs, var.alarm_actions,
  ]

  variables {
    # a capital letter
    name = "Log"
    # a zone
    region = "eu-central-1a"
    # a location
    bucket = "s3://a-log"
    # a directory without driftlog
    wheels_directory = "tests"
    # a file that is no release of etcd
    etcd_release_file = "main.tf"
    # public addresses
    cidr_block = "8.8.0.0/20"
    # sizes without a family
    agent_instance_type = "large"
    etcd_instance_type  = "medium"
    # a name of an image
    agent_image_id = "al2023"
    # the internet
    client_cidr_blocks = ["0.0.0.0/0"]
    # the wildcard
    reader_principals = ["*"]
    writer_principals = ["spark"]
    # two agents
    min_size = 2
    # a group without machines
    seal_min_size = 0
    # a name that is no config
    broker_configs = { "store = x" = "y" }
    # an address of mail
    alarm_actions = ["ops@example.com"]
  }
}

run "asks_for_the_network_of_another_type" {
  command         = plan
  expect_failures = [var.agent_network_baseline_mbit_s]

  variables {
    agent_instance_type = "c7gn.large"
  }
}

run "refuses_a_region_with_other_names_of_endpoints" {
  command         = plan
  expect_failures = [var.region]

  variables {
    region             = "cn-north-1"
    availability_zones = ["cn-north-1a", "cn-north-1b", "cn-north-1d"]
  }
}

run "refuses_a_name_that_a_load_balancer_may_not_have" {
  command         = plan
  expect_failures = [var.name]

  variables {
    name = "internal"
  }
}

run "refuses_each_of_these_too" {
  command = plan
  expect_failures = [
    var.name, var.availability_zones, var.bucket, var.etcd_release_file, var.cidr_block, var.client_cidr_blocks, var.max_size, var.seal_max_size,
  ]

  variables {
    # AWS' own names of parameters
    name = "aws-log"
    # zones of another region
    availability_zones = ["us-east-1a", "us-east-1b", "us-east-1c"]
    # a name without a certificate
    bucket = "logs.example.com"
    # a file that is not there
    etcd_release_file = "etcd-v3.6.16-linux-arm64.tar.gz"
    # too few addresses
    cidr_block = "10.0.0.0/28"
    # addresses that are public in part
    client_cidr_blocks = ["192.168.0.0/13"]
    # the smallest size is 3
    max_size = 3
    # the smallest size is 1
    seal_max_size = 1
  }
}
