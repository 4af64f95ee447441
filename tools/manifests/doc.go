// Package manifests has only tests: they load the examples for Kubernetes and Envoy Gateway into the types that read
// them in production. It is a separate module, because those types have more dependencies than the server.
package manifests
