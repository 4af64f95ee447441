package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
)

// Forty concurrent calls with a budget.
const (
	callers = 40
	perTurn = 50 // tokens of a call
	budget  = 1000

	budgetRules = `domain: edge
descriptors:
  - key: user
    descriptors:
      - {key: budget, value: tokens, rate_limit: {unit: hour, requests_per_unit: 1000, late_charge: true}}
      - {key: budget, value: reserved, rate_limit: {unit: hour, requests_per_unit: 1000, reserve: {estimate: 50}}}
      - {key: stream, rate_limit: {unit: hour, requests_per_unit: 1000, reserve: {by: stream, estimate: 50}}}
`
	// A route with reservations, with the actions of the first and the second call.
	budgetRoute = `                        - match: {prefix: %s}
                          route: {cluster: application}
                          typed_per_filter_config:
                            envoy.filters.http.ratelimit:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                              rate_limits:
                                - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}, %s]
                                  hits_addend: {number: 0}
                                - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}, %s]
                                  apply_on_stream_done: true
                                  hits_addend: {format: "%%RESP(x-tokens-used)%%"}
`
	lastRoute = `                        - match: {prefix: /}
                          route: {cluster: application}
`
	streamID = `
                early_header_mutation_extensions:
                  - name: envoy.http.early_header_mutation.header_mutation
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation
                      mutations:
                        - append: {header: {key: x-stream-id, value: "%UNIQUE_ID%"}, append_action: OVERWRITE_IF_EXISTS_OR_ADD}
`
	slow = `
                http_filters:
                  - name: envoy.filters.http.fault
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault
                      delay: {fixed_delay: 2s, percentage: {numerator: 100}}
`
)

// reservations returns changes of envoy.yaml for calls that take two seconds and 50 tokens: two more routes, which reserve with an ID
// and with a header that Envoy sets.
// header that Envoy sets.
func reservations() []edit {
	const (
		reserved = "{generic_key: {descriptor_key: budget, descriptor_value: reserved}}"
		id       = "{metadata: {descriptor_key: reservation, source: DYNAMIC, default_value: none, " +
			"metadata_key: {key: envoy.filters.http.ratelimit, path: [{key: reservation}]}}}"
		stream  = "{request_headers: {header_name: x-stream-id, descriptor_key: stream}}"
		remote  = "\n                use_remote_address: true\n"
		filters = "stat_prefix: application\n                http_filters:\n"
	)
	return []edit{
		{`key: x-tokens-used, value: "300"`, fmt.Sprintf(`key: x-tokens-used, value: "%d"`, perTurn), ""},
		{remote, strings.TrimSuffix(remote, "\n") + streamID, ""},
		{filters, "stat_prefix: application" + slow, ""},
		{lastRoute, fmt.Sprintf(budgetRoute, "/v1/reserved", reserved, reserved+", "+id) + fmt.Sprintf(budgetRoute, "/v1/stream", stream, stream) + lastRoute, ""},
	}
}

// reserve compares the tokens that forty concurrent calls spend with late charges and with reservations.
func (d *demo) reserve(ctx context.Context) (err error) {
	rules := filepath.Join(d.dir, "budget", "rules")
	if err := errors.Join(os.MkdirAll(rules, 0o700), os.WriteFile(filepath.Join(rules, "edge.yaml"), []byte(budgetRules), 0o600)); err != nil {
		return err
	}
	if d.first, err = d.startFirst(ctx, "RUNTIME_ROOT="+filepath.Dir(rules)); err != nil {
		return err
	}
	defer d.first.Kill()
	if err := d.startEnvoy(ctx, "envoy-budget.yaml", reservations()...); err != nil {
		return err
	}
	if err := d.await(ctx, "admin", healthy, 1); err != nil {
		return err
	}
	for _, x := range []struct {
		path, how string
		want      int
	}{
		{chat, "charged after the answer", callers * perTurn},
		{"/v1/reserved", "reserve: {estimate: 50}", budget},
		{"/v1/stream", "reserve: {by: stream, estimate: 50}", budget},
	} {
		spent, err := d.together(ctx, x.path)
		if err != nil {
			return err
		}
		d.printf("   | %4d tokens spent, %s\n", spent, x.how)
		if spent != x.want {
			return fmt.Errorf("%s: %d calls at a time should spend %d, and have spent %d", x.how, callers, x.want, spent)
		}
	}
	return nil
}

// together makes forty concurrent calls as one user, and returns the tokens of those that passed.
func (d *demo) together(ctx context.Context, path string) (spent int, err error) {
	var passed atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, callers)
	for i := range errs {
		wg.Go(func() {
			got, err := d.get(ctx, "edge", path, "erin")
			switch {
			case err == nil && got.status == http.StatusOK:
				passed.Add(1)
			case err == nil && got.status != http.StatusTooManyRequests:
				err = fmt.Errorf("%s is answered %d", path, got.status)
			}
			errs[i] = err
		})
	}
	wg.Wait()
	return int(passed.Load()) * perTurn, errors.Join(errs...)
}
