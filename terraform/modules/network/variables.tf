variable "name" {
  description = "Name of the cluster, which begins the names of all resources."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,19}$", var.name))
    error_message = "At most 20 lower-case letters, digits and hyphens, a letter first: names of load balancers end at 32."
  }

  validation {
    condition     = !can(regex("^(internal|sg)(-|$)", var.name))
    error_message = "Names of load balancers do not begin with internal-, and those of security groups not with sg-."
  }
}

variable "cidr_block" {
  description = "Addresses of the VPC: private ones, from /16 to /24."
  type        = string
  default     = "10.80.0.0/20"

  validation {
    condition     = can(cidrhost(var.cidr_block, 0)) && can(regex("^(10\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.|192\\.168\\.)", var.cidr_block))
    error_message = "A block of private addresses (RFC 1918)."
  }

  validation {
    condition     = try(tonumber(split("/", var.cidr_block)[1]) >= 16 && tonumber(split("/", var.cidr_block)[1]) <= 24, false)
    error_message = "From /16 to /24: each of the subnets takes an eighth of it."
  }
}

variable "availability_zones" {
  description = "Names of three zones: etcd has a member in each, and agents spread over them."
  type        = list(string)

  validation {
    condition     = length(var.availability_zones) == 3 && length(distinct(var.availability_zones)) == 3
    error_message = "Three different zones: with two, etcd stops when one of them fails."
  }
}

variable "tags" {
  description = "Tags of everything that the module makes."
  type        = map(string)
  default     = {}
}
