module github.com/ratelimitd/ratelimitd/tools/demo

go 1.26.0

require (
	github.com/ratelimitd/ratelimitd v0.0.0
	gopkg.in/yaml.v3 v3.0.1
)

require golang.org/x/sys v0.49.0 // indirect

replace github.com/ratelimitd/ratelimitd => ../..
