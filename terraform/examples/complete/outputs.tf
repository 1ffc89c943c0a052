output "bootstrap_servers" {
  description = "For Kafka clients."
  value       = module.agents.bootstrap_servers
}

output "bootstrap_servers_by_zone" {
  description = "For Kafka clients in one zone."
  value       = module.agents.bootstrap_servers_by_zone
}

output "client_properties" {
  description = "The `client.properties` of Kafka's tools."
  value       = module.agents.client_properties
}

output "vpc_id" {
  description = "Id of the VPC, for peering."
  value       = module.network.vpc_id
}

output "route_table_id" {
  description = "Id of the subnets' route table, which needs the routes to where clients are."
  value       = module.network.route_table_id
}

output "bucket" {
  description = "Name of the bucket."
  value       = module.bucket.name
}

output "location" {
  description = "What Spark reads: `read_topic(spark, location, topic)`."
  value       = module.bucket.location
}

output "reader_role_arn" {
  description = "ARN of the role with which Spark reads topics."
  value       = module.bucket.reader_role_arn
}

output "writer_role_arn" {
  description = "ARN of the role with which Spark imports, compacts and merges topics."
  value       = module.bucket.writer_role_arn
}

output "dashboard_name" {
  description = "Name of CloudWatch's dashboard."
  value       = module.observability.dashboard_name
}

output "agent_toml" {
  description = "The agents' configuration, as it is on each machine."
  value       = module.agents.agent_toml
}
