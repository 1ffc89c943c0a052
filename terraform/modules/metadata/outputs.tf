output "endpoints" {
  description = "The members, as `--etcd` takes them. They stay when a machine is replaced."
  value       = [for zone in local.zones : "https://${aws_network_interface.this[zone].private_ip}:2379"]

  depends_on = [
    aws_vpc_security_group_ingress_rule.clients,
    aws_vpc_security_group_ingress_rule.members,
    aws_vpc_security_group_egress_rule.members,
    aws_volume_attachment.this,
  ]
}

output "client_certificate_parameter" {
  description = "Name of the parameter with the clients' key, their certificate and the authority's, which the first member stores."
  value       = "${local.parameters}/client"
}

output "instance_ids" {
  description = "Ids of the machines, by the name of the member."
  value       = { for zone, member in local.members : member => aws_instance.this[zone].id }
}

output "security_group_id" {
  description = "Id of the members' security group."
  value       = aws_security_group.this.id
}

output "backups" {
  description = "Where the members write their snapshots, each under its name."
  value       = "s3://${var.bucket}/${local.backups}"
}
