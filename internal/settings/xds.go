package settings

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// XDS says from which control plane rules come, if Rules.Source says that they do.
type XDS struct {
	NodeID         string            `env:"CONFIG_GRPC_XDS_NODE_ID"`
	NodeMetadata   map[string]string `env:"CONFIG_GRPC_XDS_NODE_METADATA"                 envKeyValSeparator:"="`
	Server         string            `env:"CONFIG_GRPC_XDS_SERVER_URL"`
	FirstWait      time.Duration     `env:"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL"`
	Headers        map[string]string `env:"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS"     envKeyValSeparator:":"`
	TLS            bool              `env:"CONFIG_GRPC_XDS_SERVER_USE_TLS"`
	Cert           string            `env:"CONFIG_GRPC_XDS_CLIENT_TLS_CERT"`
	Key            string            `env:"CONFIG_GRPC_XDS_CLIENT_TLS_KEY"`
	CA             string            `env:"CONFIG_GRPC_XDS_SERVER_TLS_CACERT"`
	SAN            string            `env:"CONFIG_GRPC_XDS_SERVER_TLS_SAN"`
	BackoffInitial time.Duration     `env:"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL"`
	BackoffMax     time.Duration     `env:"XDS_CLIENT_BACKOFF_MAX_INTERVAL"`
	BackoffFactor  float64           `env:"XDS_CLIENT_BACKOFF_RANDOM_FACTOR"`
	BackoffJitter  bool              `env:"XDS_CLIENT_BACKOFF_JITTER"`
	MaxMessage     int               `env:"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"` // bytes; 0 if not set
	KeepOnEmpty    bool              `env:"XDS_KEEP_ON_EMPTY"`
}

// checkXDS returns which settings of the control plane do not go together.
func checkXDS(given map[string]string) []error {
	const cert, key = "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"
	if (given[cert] == "") != (given[key] == "") {
		return []error{fmt.Errorf("%s and %s go together: set both, or neither", cert, key)}
	}
	return nil
}

// checkNamed requires a name before the first separator of each pair. The error does not repeat the pairs, which may be
// secret.
func checkNamed(v, separator string) error {
	for pair := range strings.SplitSeq(v, ",") {
		if name, _, found := strings.Cut(pair, separator); !found || strings.TrimSpace(name) == "" {
			return errors.New("a pair without a name")
		}
	}
	return nil
}
