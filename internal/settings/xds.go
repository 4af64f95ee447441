package settings

import (
	"fmt"
	"time"
)

// XDS says from which control plane rules come, if Rules.Source says that they do.
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

// checkXDS returns which settings of the control plane do not go together.
func checkXDS(given map[string]string) []error {
	const cert, key = "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"
	if (given[cert] == "") != (given[key] == "") {
		return []error{fmt.Errorf("%s and %s belong together: set both, or neither", cert, key)}
	}
	return nil
}
