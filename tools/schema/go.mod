module github.com/ratelimitd/ratelimitd/tools/schema

go 1.26.7

require (
	github.com/ratelimitd/ratelimitd v0.0.0
	github.com/rogpeppe/go-internal v1.16.0
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.3
	gopkg.in/yaml.v3 v3.0.1
)

require (
	golang.org/x/text v0.43.0 // indirect
	golang.org/x/tools v0.51.0 // indirect
)

replace github.com/ratelimitd/ratelimitd => ../..
