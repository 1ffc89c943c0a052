output "bootstrap_servers" {
  description = "For Kafka clients anywhere in `client_cidr_blocks`."
  value       = "${aws_lb.bootstrap.dns_name}:9092"
}

output "bootstrap_servers_by_zone" {
  description = "For clients in one zone, by its name: they begin with an agent of their zone."
  value       = { for zone in sort(keys(var.subnet_ids)) : zone => "${zone}.${aws_lb.bootstrap.dns_name}:9092" }
}

output "client_properties" {
  description = "The `client.properties` of Kafka's tools."
  value       = "bootstrap.servers=${aws_lb.bootstrap.dns_name}:9092\nsecurity.protocol=PLAINTEXT\n"
}

output "security_group_id" {
  description = "Id of the agents' security group, which etcd lets in."
  value       = aws_security_group.agents.id
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
  value       = aws_lb_target_group.agents.arn_suffix
}

output "load_balancer_arn_suffix" {
  description = "The load balancer, as CloudWatch names it."
  value       = aws_lb.bootstrap.arn_suffix
}

output "agent_toml" {
  description = "The agents' configuration, as it is on each machine."
  value       = local.agent_toml
}
