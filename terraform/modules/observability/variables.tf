variable "name" {
  description = "Name of the cluster: the dimension of its metrics."
  type        = string
}

variable "agents" {
  description = "Agents that the cluster has at least; fewer live ones raise an alarm."
  type        = number

  validation {
    condition     = var.agents >= 1
    error_message = "At least 1."
  }
}

variable "autoscaling_group_name" {
  description = "Name of the agents' group."
  type        = string
}

variable "target_group_arn_suffix" {
  description = "The agents' target group, as CloudWatch names it."
  type        = string
}

variable "load_balancer_arn_suffix" {
  description = "The load balancer, as CloudWatch names it."
  type        = string
}

variable "etcd_instance_ids" {
  description = "Ids of etcd's machines, by the name of the member. Empty where etcd is not the module metadata's."
  type        = map(string)
}

variable "alarm_actions" {
  description = "ARNs of what an alarm calls, such as an SNS topic that pages."
  type        = list(string)

  validation {
    condition     = alltrue([for arn in var.alarm_actions : startswith(arn, "arn:")])
    error_message = "Each action is an ARN."
  }
}

variable "tags" {
  description = "Tags of everything that the module makes."
  type        = map(string)
  default     = {}
}
