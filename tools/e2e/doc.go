// Package e2e plays what the examples for Envoy promise from end to end: requests over HTTP, through Envoy with the example's
// own configuration, to an upstream that counts what gets through, while ratelimitd, a real process, decides. Then it takes
// away, one after the other, what decisions need. There are two proxies: a real Envoy, where one is at hand, and
// internal/envoytest, which plays its filter, so that the cases themselves are tried wherever the tests are.
//
//	go test                                    # what is quick, with the filter that is played
//	go test -args -full -envoy /path/to/envoy  # everything, with a real Envoy; make e2e does this
package e2e
