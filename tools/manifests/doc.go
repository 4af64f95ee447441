// Package manifests has only tests: they load the examples for Kubernetes and Envoy Gateway with the types that
// production code uses, and check the pipelines for GitHub with a linter. It is a separate module, because these have
// more dependencies than the server.
package manifests
