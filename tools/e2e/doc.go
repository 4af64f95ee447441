// Package e2e plays the examples for Envoy from end to end: requests over HTTP, a real Envoy with the example's own
// configuration, an upstream that counts what reaches it, and a real ratelimitd that decides. Then it takes away, one after the
// other, what decisions need. What it saw is written into docs/envoy-results.md.
//
//	go test                  # the quick cases, as make test does
//	go test -args -play whole  # all of them, as make e2e does
//	make gateways              # policies through Envoy Gateway, which others replay from recordings
//
// Envoy is the one that tools/need finds or downloads. Without one, the quick cases are skipped.
package e2e
