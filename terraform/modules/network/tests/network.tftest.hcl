# The rules of the network. Nothing is asked of AWS.

provider "aws" {
  region                      = "eu-central-1"
  access_key                  = "none"
  secret_key                  = "none"
  skip_credentials_validation = true
  skip_metadata_api_check     = true
  skip_requesting_account_id  = true
}

variables {
  name               = "a"
  availability_zones = ["eu-central-1a", "eu-central-1b", "eu-central-1c"]
}

run "no_way_to_the_internet" {
  command = plan

  assert {
    condition     = alltrue([for subnet in aws_subnet.this : !subnet.map_public_ip_on_launch])
    error_message = "No subnet gives public addresses."
  }

  assert {
    condition     = length(aws_subnet.this) == 3 && length(distinct([for subnet in aws_subnet.this : subnet.cidr_block])) == 3
    error_message = "Each zone has a subnet of its own."
  }

  assert {
    condition     = aws_vpc_endpoint.s3.vpc_endpoint_type == "Gateway"
    error_message = "S3 is reached through its gateway, which costs nothing a byte."
  }

  assert {
    condition     = aws_vpc_security_group_ingress_rule.endpoints.cidr_ipv4 == "10.80.0.0/20"
    error_message = "Only the VPC reaches the endpoints."
  }

  assert {
    condition     = alltrue([for endpoint in aws_vpc_endpoint.interface : endpoint.private_dns_enabled])
    error_message = "The services' own names lead to the endpoints."
  }
}

run "refuses_a_name_that_aws_does_not_take" {
  command         = plan
  expect_failures = [var.name]

  variables {
    name = "sg"
  }
}

# One run for all of them: each must be refused, or the run fails.
run "refuses_each_of_these" {
  command         = plan
  expect_failures = [var.availability_zones, var.cidr_block, var.name]

  variables {
    # two zones
    availability_zones = ["eu-central-1a", "eu-central-1b"]
    # public addresses
    cidr_block = "8.8.0.0/20"
    # a long name
    name = "a-name-that-is-much-too-long"
  }
}

run "refuses_each_of_these_too" {
  command         = plan
  expect_failures = [var.availability_zones, var.cidr_block]

  variables {
    # one zone twice
    availability_zones = ["eu-central-1a", "eu-central-1b", "eu-central-1b"]
    # a network that is too small
    cidr_block = "10.0.0.0/26"
  }
}
