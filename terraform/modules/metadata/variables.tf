variable "name" {
  description = "Name of the cluster, which begins the names of all resources."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,19}$", var.name))
    error_message = "At most 20 lower-case letters, digits and hyphens, a letter first."
  }

  validation {
    condition     = !startswith(var.name, "aws") && !startswith(var.name, "ssm")
    error_message = "A name of parameters begins with neither aws nor ssm."
  }

  validation {
    condition     = !can(regex("^(internal|sg)(-|$)", var.name))
    error_message = "Names of load balancers do not begin with internal-, and those of security groups not with sg-."
  }
}

variable "vpc_id" {
  description = "Id of the VPC."
  type        = string
}

variable "subnet_ids" {
  description = "Ids of three private subnets, by the name of their zone: each zone gets one member."
  type        = map(string)

  validation {
    condition     = length(var.subnet_ids) == 3
    error_message = "Three zones: etcd goes on while one of three members is away."
  }
}

variable "client_security_group_ids" {
  description = "Security groups of etcd's clients, which are the agents. The keys are names of your choice."
  type        = map(string)

  validation {
    condition     = length(var.client_security_group_ids) > 0
    error_message = "Without a client's group no agent reaches etcd."
  }

  validation {
    condition     = alltrue([for name in keys(var.client_security_group_ids) : can(regex("^[a-zA-Z0-9 ._-]{1,100}$", name))])
    error_message = "Names have letters, digits, spaces and . _ - only: EC2 refuses a rule with another description."
  }
}

variable "bucket" {
  description = "Name of the bucket: etcd's release is read from artifacts/, and snapshots go to backups/."
  type        = string
}

variable "etcd_release_file" {
  description = "A local file: etcd's release for Linux as its authors publish it, `etcd-v3.6.16-linux-arm64.tar.gz` or newer, for the architecture of `instance_type`."
  type        = string

  validation {
    condition     = can(regex("etcd-v3\\.(5\\.(3[3-9]|[4-9][0-9])|6\\.(1[4-9]|[2-9][0-9]))-linux-(arm64|amd64)\\.tar\\.gz$", var.etcd_release_file))
    error_message = "A release 3.5.33, 3.6.14 or newer, under the name of its authors."
  }
}

variable "instance_type" {
  description = "Type of the members' machines. Two thousand transactions a second need one core; etcd's quota is half of the memory, at most 8 GiB, so that memory holds the whole database. A member has another type when its machine is replaced."
  type        = string
  default     = "m7g.medium"
}

variable "volume_gib" {
  description = "Size of each member's volume. etcd's quota is at most 8 GiB, and a snapshot of as much may lie beside it. A member has a larger one when its machine is replaced."
  type        = number
  default     = 24

  validation {
    condition     = var.volume_gib >= 24
    error_message = "At least 24 GiB: the database, its log, and one snapshot."
  }
}

variable "permissions_boundary" {
  description = "ARN of the permissions boundary of the machines' role; null for none."
  type        = string
  default     = null
}

variable "tags" {
  description = "Tags of everything that the module makes."
  type        = map(string)
  default     = {}
}
