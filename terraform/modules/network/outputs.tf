output "vpc_id" {
  description = "Id of the VPC."
  value       = aws_vpc.this.id

  # Machines start when the services that they call can be reached.
  depends_on = [aws_vpc_endpoint.s3, aws_vpc_endpoint.interface, aws_route_table_association.this]
}

output "cidr_block" {
  description = "Addresses of the VPC."
  value       = aws_vpc.this.cidr_block
}

output "subnet_ids" {
  description = "Ids of the private subnets, by the name of their zone."
  value       = { for zone, subnet in aws_subnet.this : zone => subnet.id }
}

output "route_table_id" {
  description = "Id of the subnets' route table, for peering or a transit gateway to where clients are."
  value       = aws_route_table.this.id
}
