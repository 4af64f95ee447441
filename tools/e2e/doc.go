// Package e2e runs the Envoy examples from end to end: requests over HTTP, a real Envoy with the example's configuration, an
// upstream that counts requests, and a real ratelimitd. Then it removes the dependencies of decisions, one after the other.
// docs/envoy-results.md has the results.
//
//	go test                  # the quick cases, as in make test
//	go test -args -play whole  # all cases, as in make e2e
//	make gateways              # policies through Envoy Gateway, recorded for replay in other runs
//
// tools/need finds or downloads Envoy. Without Envoy, the quick cases are skipped.
package e2e
