variable "name" {
  description = "Name of the cluster."
  type        = string
  default     = "driftlog"
}

variable "region" {
  description = "Region of everything."
  type        = string
}

variable "availability_zones" {
  description = "Names of three zones of the region."
  type        = list(string)
}

variable "bucket" {
  description = "Name of the bucket, which is made."
  type        = string
}

variable "wheels_directory" {
  description = "A local directory with driftlog's wheel and its dependencies: docs/deploy.md says how to make it."
  type        = string
}

variable "etcd_release_file" {
  description = "A local file: etcd's release, such as etcd-v3.6.16-linux-arm64.tar.gz."
  type        = string
}

variable "cidr_block" {
  description = "Addresses of the VPC: private ones, from /16 to /24."
  type        = string
  default     = "10.80.0.0/20"
}

variable "agent_instance_type" {
  description = "Type of the agents' machines. The wheels are for its architecture; for another network give `network_baseline_mbit_s` to the module agents."
  type        = string
  default     = "m7i.large"
}

variable "etcd_instance_type" {
  description = "Type of the machines of etcd's members. The release is for its architecture."
  type        = string
  default     = "m7g.medium"
}

variable "client_cidr_blocks" {
  description = "Private addresses of Kafka clients and operators outside of the VPC, behind a peering or a VPN."
  type        = list(string)
  default     = []
}

variable "reader_principals" {
  description = "ARNs that may assume the role with which Spark reads."
  type        = list(string)
  default     = []
}

variable "writer_principals" {
  description = "ARNs that may assume the role with which Spark imports, compacts and merges."
  type        = list(string)
  default     = []
}

variable "min_size" {
  description = "Agents at least."
  type        = number
  default     = 3
}

variable "max_size" {
  description = "Agents at most."
  type        = number
  default     = 12
}

variable "broker_configs" {
  description = "Broker configs by Kafka's names."
  type        = map(string)
  default     = {}
}

variable "deletion_protection" {
  description = "Whether the load balancer is protected from deletion."
  type        = bool
  default     = true
}

variable "alarm_actions" {
  description = "ARNs of what an alarm calls, such as an SNS topic that pages."
  type        = list(string)
  default     = []
}
