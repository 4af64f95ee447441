// Package manifests has only tests: they load the examples for Kubernetes and Envoy Gateway into the types that read them in
// earnest. It is a module of its own, because those types bring more than the server does.
package manifests
