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

variable "roles" {
  description = "What the agents of this group do: `serve`, `seal`, or both. Agents that only seal are a second group: a second call of this module, beside one whose agents only serve."
  type        = list(string)
  default     = ["serve", "seal"]

  validation {
    condition     = length(var.roles) > 0 && length(setsubtract(var.roles, ["serve", "seal"])) == 0 && length(distinct(var.roles)) == length(var.roles)
    error_message = "The roles are serve and seal, each once: [\"serve\", \"seal\"], [\"serve\"] or [\"seal\"]."
  }
}

variable "security_group_id" {
  description = "Where agents only seal: the `security_group_id` of the group that serves, whose agents send them what is to be sealed. Else null: the group makes its own."
  type        = string
  default     = null

  validation {
    condition     = (var.security_group_id == null) == contains(var.roles, "serve")
    error_message = "Agents that only seal (roles = [\"seal\"]) share the security group of those that serve: give security_group_id = module.agents.security_group_id. A group that serves makes its own: leave it out."
  }
}

variable "vpc_id" {
  description = "Id of the VPC."
  type        = string
}

variable "subnet_ids" {
  description = "Ids of three private subnets, by the name of their zone."
  type        = map(string)

  validation {
    condition     = length(var.subnet_ids) == 3
    error_message = "Three zones: agents lose a third of their machines with one of them."
  }
}

variable "client_cidr_blocks" {
  description = "Private addresses of Kafka clients; not for agents that only seal. Listeners are plaintext and know no users: whoever reaches them reads and writes everything."
  type        = list(string)
  default     = []

  validation {
    condition     = length(var.client_cidr_blocks) > 0 || !contains(var.roles, "serve")
    error_message = "Without an address of clients no client reaches the listeners."
  }

  validation {
    condition     = alltrue([for block in var.client_cidr_blocks : can(regex("^(10\\.[0-9.]+/([89]|[12]\\d|3[0-2])|172\\.(1[6-9]|2\\d|3[01])\\.[0-9.]+/(1[2-9]|2\\d|3[0-2])|192\\.168\\.[0-9.]+/(1[6-9]|2\\d|3[0-2])|100\\.(6[4-9]|[7-9]\\d|1[01]\\d|12[0-7])\\.[0-9.]+/([12]\\d|3[0-2]))$", block)) && can(cidrhost(block, 0))])
    error_message = "Only private addresses (RFC 1918, RFC 6598), such as 10.0.0.0/8: listeners have no TLS and no passwords yet."
  }
}

variable "operator_cidr_blocks" {
  description = "Private addresses that reach the HTTP port: Prometheus, `driftlog segments seal`, Spark's imports. The port has no authentication."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for block in var.operator_cidr_blocks : can(regex("^(10\\.[0-9.]+/([89]|[12]\\d|3[0-2])|172\\.(1[6-9]|2\\d|3[01])\\.[0-9.]+/(1[2-9]|2\\d|3[0-2])|192\\.168\\.[0-9.]+/(1[6-9]|2\\d|3[0-2])|100\\.(6[4-9]|[7-9]\\d|1[01]\\d|12[0-7])\\.[0-9.]+/([12]\\d|3[0-2]))$", block)) && can(cidrhost(block, 0))])
    error_message = "Only private addresses (RFC 1918, RFC 6598)."
  }
}

variable "bucket" {
  description = "Name of the bucket: machines install driftlog from artifacts/ in it."
  type        = string
}

variable "location" {
  description = "The cluster's location: `s3://bucket/prefix`."
  type        = string

  validation {
    condition     = can(regex("^s3://[a-z0-9-]+/.+[^/]$", var.location))
    error_message = "A location is s3://bucket/prefix."
  }
}

variable "bucket_policy_arn" {
  description = "ARN of the policy with what an agent does in the bucket: `agent_policy_arn` of the module bucket."
  type        = string
}

variable "wheels_directory" {
  description = "A local directory with driftlog's wheel and those of its dependencies, for Python 3.12 and the architecture of `instance_type`, as `pip wheel --wheel-dir DIR '.[agent]'` leaves them."
  type        = string

  validation {
    condition     = length(fileset(var.wheels_directory, "driftlog-*.whl")) == 1
    error_message = "The directory has one wheel of driftlog: docs/deploy.md says how to make it."
  }
}

variable "etcd_endpoints" {
  description = "Members of etcd: those of the module metadata, or of an etcd that exists."
  type        = list(string)

  validation {
    condition     = length(var.etcd_endpoints) > 0 && alltrue([for url in var.etcd_endpoints : can(regex("^https://[^/ ]+:[0-9]+$", url))])
    error_message = "Each endpoint is https://HOST:PORT: etcd holds the cluster's metadata, and is asked with a client's certificate only."
  }

  # EC2 refuses a rule that a group has already.
  validation {
    condition     = !anytrue([for url in var.etcd_endpoints : can(regex(":(443|9092|9644)$", url))])
    error_message = "etcd has ports of its own: 443, 9092 and 9644 are those of AWS services and agents."
  }
}

variable "etcd_client_certificate_parameter" {
  description = "Name of the SecureString with the client's key, its certificate and the authority's as PEM, certificates in this order. It has at most 4 KB, and the key `aws/ssm`: machines may use no other one."
  type        = string

  validation {
    condition     = startswith(var.etcd_client_certificate_parameter, "/")
    error_message = "The name of a parameter is a path, such as /log/etcd/client."
  }
}

variable "broker_configs" {
  description = "Broker configs by Kafka's names, the same for each agent, such as `{ \"log.retention.hours\" = \"72\" }`. docs/configs.md lists them."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for name in keys(var.broker_configs) : can(regex("^[a-z][a-z0-9]*(\\.[a-z][a-z0-9]*)+$", name))])
    error_message = "Names are Kafka's: lower-case words and digits between dots."
  }
}

variable "session_timeout_ms" {
  description = "An agent that is silent for this long loses its partitions to the others."
  type        = number
  default     = 6000

  validation {
    condition     = var.session_timeout_ms >= 2000 && var.session_timeout_ms <= 60000
    error_message = "From 2000 to 60000 ms."
  }
}

variable "instance_type" {
  description = "Type of the agents' machines, with two cores: an agent is one process with one event loop, so more agents carry more, and larger machines hardly do."
  type        = string
  default     = "m7i.large"
}

variable "image_id" {
  description = "Image of the machines, of Amazon Linux 2023; null for the newest. With null, an apply after a new image has come refreshes the group, whatever else it changes."
  type        = string
  default     = null

  validation {
    condition     = var.image_id == null || can(regex("^ami-[0-9a-f]{8,17}$", var.image_id))
    error_message = "The id of an image, such as ami-0123456789abcdef0, or null."
  }
}

variable "network_baseline_mbit_s" {
  description = "Network baseline of `instance_type` (`aws ec2 describe-instance-types`, BaselineBandwidthInGbps × 1000); that of m7i.large is 781."
  type        = number
  default     = 781
  nullable    = false

  validation {
    condition     = var.network_baseline_mbit_s > 0
    error_message = "More than 0."
  }
}

variable "min_size" {
  description = "Agents at least. Three: each zone has one. Of agents that only seal one is enough: leaders seal while there is none."
  type        = number
  default     = 3

  validation {
    condition     = var.min_size >= (contains(var.roles, "serve") ? 3 : 1)
    error_message = "At least 3: one agent in each zone; at least 1 where agents only seal."
  }
}

variable "max_size" {
  description = "Agents at most."
  type        = number
  default     = 12

  validation {
    condition     = var.max_size > var.min_size
    error_message = "More than min_size: a rolling refresh starts an agent before it ends another."
  }
}

variable "volume_gib" {
  description = "Size of the volume for buffers and the cache of reads, where `instance_type` has no disk of its own."
  type        = number
  default     = 64

  validation {
    condition     = var.volume_gib >= 32
    error_message = "At least 32 GiB: buffers of unsealed data and the cache of reads."
  }
}

variable "volume_throughput_mib_s" {
  description = "Throughput of that volume. All produced bytes are written to it once. Above 750, AWS charges for more than 3000 IOPS, too."
  type        = number
  default     = 250

  validation {
    condition     = var.volume_throughput_mib_s >= 125 && var.volume_throughput_mib_s <= 1000
    error_message = "From 125 to 1000 MiB/s, as gp3 has it."
  }
}

variable "deletion_protection" {
  description = "Whether the load balancer, whose name clients have, is protected from deletion. Nothing else is: `terraform destroy` stops at the balancer, and has ended the machines."
  type        = bool
  default     = true
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
