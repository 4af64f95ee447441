package settings

import (
	"fmt"
	"strings"
	"time"
)

// XDS configures the control plane, if Rules.Source selects it.
type XDS struct {
	NodeID         string
	NodeMetadata   map[string]string
	Server         string
	FirstWait      time.Duration
	Headers        map[string]string
	TLS            bool
	Cert           string
	Key            string
	CA             string
	SAN            string
	BackoffInitial time.Duration
	BackoffMax     time.Duration
	BackoffFactor  float64
	BackoffJitter  bool
	MaxMessage     int // bytes; 0 if not set
	KeepOnEmpty    bool
}

// checkXDS returns the errors in the variables of the control plane, including their combinations.
func checkXDS(given map[string]string) (problems []error) {
	const (
		server    = "CONFIG_GRPC_XDS_SERVER_URL"
		cert, key = "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"
	)
	if v := given[server]; withAt(v) && !strings.HasPrefix(v, "unix:") && !strings.HasPrefix(v, "unix-abstract:") {
		problems = append(problems, wrong(server, v, "host:port, dns:///host:port or unix:PATH, without a user or a password; "+
			"put credentials into CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS, such as authorization:Bearer TOKEN"))
	}
	if (given[cert] == "") != (given[key] == "") {
		problems = append(problems, fmt.Errorf("%s and %s belong together: set both, or neither", cert, key))
	}
	return problems
}
