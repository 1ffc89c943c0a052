# A cluster in three zones: its bucket, its network, etcd, agents, alarms.

terraform {
  required_version = ">= 1.9"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.60, < 7.0"
    }
  }
}

provider "aws" {
  region = var.region

  default_tags {
    tags = { Cluster = var.name }
  }
}

locals {
  seals_apart = var.seal_max_size > 0
}

module "bucket" {
  source = "../../modules/bucket"

  name              = var.bucket
  reader_principals = var.reader_principals
  writer_principals = var.writer_principals
}

module "network" {
  source = "../../modules/network"

  name               = var.name
  availability_zones = var.availability_zones
  cidr_block         = var.cidr_block
}

module "metadata" {
  source = "../../modules/metadata"

  name                      = var.name
  vpc_id                    = module.network.vpc_id
  subnet_ids                = module.network.subnet_ids
  client_security_group_ids = { agents = module.agents.security_group_id }
  bucket                    = module.bucket.name
  etcd_release_file         = var.etcd_release_file
  instance_type             = var.etcd_instance_type
}

module "agents" {
  source = "../../modules/agents"

  name                 = var.name
  roles                = local.seals_apart ? ["serve"] : ["serve", "seal"]
  vpc_id               = module.network.vpc_id
  subnet_ids           = module.network.subnet_ids
  client_cidr_blocks   = concat([module.network.cidr_block], var.client_cidr_blocks)
  operator_cidr_blocks = var.client_cidr_blocks

  bucket            = module.bucket.name
  location          = module.bucket.location
  bucket_policy_arn = module.bucket.agent_policy_arn
  wheels_directory  = var.wheels_directory

  etcd_endpoints                    = module.metadata.endpoints
  etcd_client_certificate_parameter = module.metadata.client_certificate_parameter

  instance_type           = var.agent_instance_type
  image_id                = var.agent_image_id
  network_baseline_mbit_s = var.agent_network_baseline_mbit_s
  min_size                = var.min_size
  max_size                = var.max_size
  broker_configs          = var.broker_configs
  deletion_protection     = var.deletion_protection
}

# Agents that only seal: a group of its own, where `seal_max_size` says so.
module "seal_agents" {
  source = "../../modules/agents"
  count  = local.seals_apart ? 1 : 0

  name              = var.name
  roles             = ["seal"]
  vpc_id            = module.network.vpc_id
  subnet_ids        = module.network.subnet_ids
  security_group_id = module.agents.security_group_id

  bucket            = module.bucket.name
  location          = module.bucket.location
  bucket_policy_arn = module.bucket.agent_policy_arn
  wheels_directory  = var.wheels_directory

  etcd_endpoints                    = module.metadata.endpoints
  etcd_client_certificate_parameter = module.metadata.client_certificate_parameter

  instance_type           = var.agent_instance_type
  image_id                = var.agent_image_id
  network_baseline_mbit_s = var.agent_network_baseline_mbit_s
  min_size                = var.seal_min_size
  max_size                = var.seal_max_size
  broker_configs          = var.broker_configs
}

module "observability" {
  source = "../../modules/observability"

  name                     = var.name
  agents                   = var.min_size + (local.seals_apart ? var.seal_min_size : 0)
  autoscaling_group_name   = module.agents.autoscaling_group_name
  target_group_arn_suffix  = module.agents.target_group_arn_suffix
  load_balancer_arn_suffix = module.agents.load_balancer_arn_suffix
  etcd_instance_ids        = module.metadata.instance_ids
  alarm_actions            = var.alarm_actions
}
