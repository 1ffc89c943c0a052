output "bootstrap_servers" {
  description = "For Kafka clients anywhere in `client_cidr_blocks`; null where agents only seal, as is all that is of the load balancer."
  value       = local.serves ? "${aws_lb.bootstrap[0].dns_name}:9092" : null
}

output "bootstrap_servers_by_zone" {
  description = "For clients in one zone, by its name: they begin with an agent of their zone."
  value       = { for zone in sort(keys(var.subnet_ids)) : zone => "${zone}.${aws_lb.bootstrap[0].dns_name}:9092" if local.serves }
}

output "client_properties" {
  description = "The `client.properties` of Kafka's tools."
  value       = local.serves ? "bootstrap.servers=${aws_lb.bootstrap[0].dns_name}:9092\nsecurity.protocol=PLAINTEXT\n" : null
}

output "security_group_id" {
  description = "Id of the agents' security group, which etcd lets in."
  value       = local.security_group_id
}

output "autoscaling_group_name" {
  description = "Name of the group of machines."
  value       = aws_autoscaling_group.agents.name
}

output "role_arn" {
  description = "ARN of the machines' role."
  value       = aws_iam_role.agents.arn
}

output "target_group_arn_suffix" {
  description = "The target group, as CloudWatch names it."
  value       = one(aws_lb_target_group.agents[*].arn_suffix)
}

output "load_balancer_arn_suffix" {
  description = "The load balancer, as CloudWatch names it."
  value       = one(aws_lb.bootstrap[*].arn_suffix)
}

output "agent_toml" {
  description = "The agents' configuration, as it is on each machine."
  value       = local.agent_toml
}
