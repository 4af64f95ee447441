package envoytest

import (
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3" // contained in an Any of the examples
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/content_parsers/json/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/json_to_metadata/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rate_limit_quota/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/sse_to_metadata/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// FilterName is the name of the rate-limit filter.
const FilterName = "envoy.filters.http.ratelimit"

// ConnectionManager returns the connection manager of the listener with the given name.
func ConnectionManager(b *bootstrapv3.Bootstrap, listener string) (*hcmv3.HttpConnectionManager, error) {
	for _, l := range b.GetStaticResources().GetListeners() {
		if l.GetName() == listener {
			var m hcmv3.HttpConnectionManager
			return &m, l.GetFilterChains()[0].GetFilters()[0].GetTypedConfig().UnmarshalTo(&m)
		}
	}
	return nil, fmt.Errorf("there is no listener %q", listener)
}
