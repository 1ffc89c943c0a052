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

run "refuses_two_zones" {
  command         = plan
  expect_failures = [var.availability_zones]

  variables {
    availability_zones = ["eu-central-1a", "eu-central-1b"]
  }
}

run "refuses_one_zone_twice" {
  command         = plan
  expect_failures = [var.availability_zones]

  variables {
    availability_zones = ["eu-central-1a", "eu-central-1b", "eu-central-1b"]
  }
}

run "refuses_public_addresses" {
  command         = plan
  expect_failures = [var.cidr_block]

  variables {
    cidr_block = "8.8.0.0/20"
  }
}

run "refuses_a_network_that_is_too_small" {
  command         = plan
  expect_failures = [var.cidr_block]

  variables {
    cidr_block = "10.0.0.0/26"
  }
}

run "refuses_a_long_name" {
  command         = plan
  expect_failures = [var.name]

  variables {
    name = "a-name-that-is-much-too-long"
  }
}
