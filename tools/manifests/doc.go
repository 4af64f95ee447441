// Package manifests has only tests: they load the examples for Kubernetes and Envoy Gateway into the types that read
// them in production, and the pipelines for GitHub into a linter. It is a separate module, because those have more
// dependencies than the server.
package manifests
