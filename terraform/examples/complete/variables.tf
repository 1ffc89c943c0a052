variable "name" {
  description = "Name of the cluster."
  type        = string
  default     = "driftlog"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,19}$", var.name)) && !startswith(var.name, "aws") && !startswith(var.name, "ssm") && !can(regex("^(internal|sg)(-|$)", var.name))
    error_message = "Give at most 20 lower-case letters, digits and hyphens, a letter first; not aws, ssm, internal- or sg- at the beginning: names of parameters, load balancers and security groups begin with it."
  }
}

variable "region" {
  description = "Region of everything."
  type        = string

  validation {
    condition     = can(regex("^[a-z]{2,}(-[a-z]+)+-[0-9]+$", var.region))
    error_message = "Give the name of a region, such as eu-central-1: aws ec2 describe-regions lists them. A zone's name has a letter more."
  }

  validation {
    condition     = !startswith(var.region, "cn-")
    error_message = "Give a region outside of China: endpoints of services have other names there."
  }
}

variable "availability_zones" {
  description = "Names of three zones of the region."
  type        = list(string)

  validation {
    condition     = length(var.availability_zones) == 3 && length(distinct(var.availability_zones)) == 3
    error_message = "Give three different zones: with two, etcd stops when one of them fails."
  }

  validation {
    condition     = alltrue([for zone in var.availability_zones : startswith(zone, var.region)])
    error_message = "Give zones of `region`, such as eu-central-1a of eu-central-1: aws ec2 describe-availability-zones lists them."
  }
}

variable "bucket" {
  description = "Name of the bucket, which is made."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{1,55}[a-z0-9]$", var.bucket))
    error_message = "Give a name alone, without s3://: 3 to 57 lower-case letters, digits and hyphens, and no dot."
  }
}

variable "wheels_directory" {
  description = "A local directory with driftlog's wheel and its dependencies: docs/deploy.md says how to make it."
  type        = string

  validation {
    condition     = length(fileset(var.wheels_directory, "driftlog-*.whl")) == 1
    error_message = "Give a directory with one wheel of driftlog, and those of its dependencies: docs/deploy.md says how to make it. Remove the wheel of another release from it."
  }
}

variable "etcd_release_file" {
  description = "A local file: etcd's release, such as etcd-v3.6.16-linux-arm64.tar.gz."
  type        = string

  validation {
    condition     = fileexists(var.etcd_release_file) && can(regex("etcd-v3\\.(5\\.(3[3-9]|[4-9][0-9])|6\\.(1[4-9]|[2-9][0-9]))-linux-(arm64|amd64)\\.tar\\.gz$", var.etcd_release_file))
    error_message = "Download etcd 3.5.33, 3.6.14 or newer for Linux, and give the file under the name that its authors gave it: docs/deploy.md says where from."
  }
}

variable "cidr_block" {
  description = "Addresses of the VPC: private ones, from /16 to /24."
  type        = string
  default     = "10.80.0.0/20"

  validation {
    condition     = can(cidrhost(var.cidr_block, 0)) && can(regex("^(10\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.|192\\.168\\.).+/(1[6-9]|2[0-4])$", var.cidr_block))
    error_message = "Give a block of private addresses (RFC 1918) from /16 to /24, such as 10.80.0.0/20, which no network that you peer with has."
  }
}

variable "agent_instance_type" {
  description = "Type of the agents' machines. The wheels are for its architecture, and `agent_network_baseline_mbit_s` is its network's."
  type        = string
  default     = "m7i.large"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]*\\.[a-z0-9-]+$", var.agent_instance_type))
    error_message = "Give a type of EC2, such as m7i.large: two cores are enough."
  }
}

variable "agent_network_baseline_mbit_s" {
  description = "Network baseline of `agent_instance_type`, at 60 % of which the group grows; null for that of m7i.large. `aws ec2 describe-instance-types` has it: BaselineBandwidthInGbps × 1000."
  type        = number
  default     = null

  validation {
    condition     = var.agent_network_baseline_mbit_s == null ? var.agent_instance_type == "m7i.large" : var.agent_network_baseline_mbit_s > 0
    error_message = "Give the baseline of agent_instance_type, in Mbit/s: aws ec2 describe-instance-types has BaselineBandwidthInGbps. The group grows by it."
  }
}

variable "agent_image_id" {
  description = "Image of the agents' machines, of Amazon Linux 2023; null for the newest. With null, an apply after a new image has come refreshes the agents."
  type        = string
  default     = null

  validation {
    condition     = var.agent_image_id == null || can(regex("^ami-[0-9a-f]{8,17}$", var.agent_image_id))
    error_message = "Give the id of an image, such as ami-0123456789abcdef0: the plan shows it as image_id of the launch template. Or leave it out."
  }
}

variable "etcd_instance_type" {
  description = "Type of the machines of etcd's members. The release is for its architecture. A member has another type when its machine is replaced: README of the module metadata."
  type        = string
  default     = "m7g.medium"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]*\\.[a-z0-9-]+$", var.etcd_instance_type))
    error_message = "Give a type of EC2, such as m7g.medium, of the architecture of etcd_release_file."
  }
}

variable "client_cidr_blocks" {
  description = "Private addresses of Kafka clients and operators outside of the VPC, behind a peering or a VPN."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for block in var.client_cidr_blocks : can(regex("^(10\\.[0-9.]+/([89]|[12]\\d|3[0-2])|172\\.(1[6-9]|2\\d|3[01])\\.[0-9.]+/(1[2-9]|2\\d|3[0-2])|192\\.168\\.[0-9.]+/(1[6-9]|2\\d|3[0-2])|100\\.(6[4-9]|[7-9]\\d|1[01]\\d|12[0-7])\\.[0-9.]+/([12]\\d|3[0-2]))$", block)) && can(cidrhost(block, 0))])
    error_message = "Give private addresses only (RFC 1918, RFC 6598), such as 10.0.0.0/16: listeners have no TLS and no passwords yet. Clients elsewhere need a peering or a VPN."
  }
}

variable "reader_principals" {
  description = "ARNs that may assume the role with which Spark reads."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.reader_principals : can(regex("^arn:aws[a-z-]*:(iam|sts)::[0-9]{12}:", arn))])
    error_message = "Give ARNs of roles, users or accounts, such as arn:aws:iam::123456789012:role/spark; the wildcard is not allowed."
  }
}

variable "writer_principals" {
  description = "ARNs that may assume the role with which Spark imports, compacts and merges."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.writer_principals : can(regex("^arn:aws[a-z-]*:(iam|sts)::[0-9]{12}:", arn))])
    error_message = "Give ARNs of roles, users or accounts, such as arn:aws:iam::123456789012:role/spark; the wildcard is not allowed."
  }
}

variable "min_size" {
  description = "Agents at least."
  type        = number
  default     = 3

  validation {
    condition     = var.min_size >= 3 && floor(var.min_size) == var.min_size
    error_message = "Give a whole number, at least 3: one agent in each zone."
  }
}

variable "max_size" {
  description = "Agents at most."
  type        = number
  default     = 12

  validation {
    condition     = var.max_size > var.min_size && floor(var.max_size) == var.max_size
    error_message = "Give a whole number above min_size: a rolling refresh starts an agent before it ends another."
  }
}

variable "seal_min_size" {
  description = "Agents that only seal, at least, where `seal_max_size` is not 0."
  type        = number
  default     = 1

  validation {
    condition     = var.seal_min_size >= 1 && floor(var.seal_min_size) == var.seal_min_size
    error_message = "Give a whole number, at least 1. For no agents that only seal: seal_max_size = 0."
  }
}

variable "seal_max_size" {
  description = "Agents that only seal, at most: they compress, compact, merge and collect, and all others only serve. 0: none; each agent does both."
  type        = number
  default     = 0

  validation {
    condition     = var.seal_max_size == 0 || (var.seal_max_size > var.seal_min_size && floor(var.seal_max_size) == var.seal_max_size)
    error_message = "Give 0, or a whole number above seal_min_size: a rolling refresh starts an agent before it ends another."
  }
}

variable "broker_configs" {
  description = "Broker configs by Kafka's names."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for name in keys(var.broker_configs) : can(regex("^[a-z][a-z0-9]*(\\.[a-z][a-z0-9]*)+$", name))])
    error_message = "Give Kafka's names, lower-case words and digits between dots, such as log.retention.hours: docs/configs.md lists them."
  }
}

variable "deletion_protection" {
  description = "Whether the load balancer is protected from deletion. Machines and etcd's volumes are not: `terraform destroy` stops at the balancer, and has ended them. The bucket stays while it is not empty."
  type        = bool
  default     = true
}

variable "alarm_actions" {
  description = "ARNs of what an alarm calls, such as an SNS topic that pages."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.alarm_actions : can(regex("^arn:aws[a-z-]*:[a-z0-9-]+:", arn))])
    error_message = "Give ARNs, such as arn:aws:sns:eu-central-1:123456789012:page: an alarm calls nothing else."
  }
}
