package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
	"gopkg.in/yaml.v3"
)

const example = "examples/envoy"

// edit is a change of envoy.yaml.
type edit struct{ old, becomes, why string }

// usual returns the changes for this machine.
func (d *demo) usual() []edit {
	edits := []edit{
		{"address: 0.0.0.0, port_value: 10000", "address: 127.0.0.1, port_value: " + d.port("edge"), "for callers on this machine alone"},
		{"timeout: 0.05s", "timeout: 2s", "so that a busy machine does not spoil the tour"},
	}
	for _, p := range usualPorts() {
		old := fmt.Sprintf("port_value: %d}", p.number)
		if chosen := d.port(p.name); p.envoy && chosen != strconv.Itoa(p.number) {
			edits = append(edits, edit{old, "port_value: " + chosen + "}", "as you say"})
		}
	}
	return edits
}

// deny makes Envoy reject requests without a decision.
func deny() edit {
	return edit{"failure_mode_deny: false", "failure_mode_deny: true", ""}
}

// replica adds the second ratelimitd to Envoy's cluster.
func (d *demo) replica() edit {
	const endpoint = `              - endpoint:
                  address:
                    socket_address: {address: 127.0.0.1, port_value: %s}
`
	first := fmt.Sprintf(endpoint, "8081")
	return edit{first, first + fmt.Sprintf(endpoint, d.port("second")), ""}
}

// startEnvoy starts or restarts Envoy with a modified copy of the example's envoy.yaml, called name. It applies the usual changes last.
func (d *demo) startEnvoy(ctx context.Context, name string, edits ...edit) (err error) {
	raw, err := os.ReadFile(filepath.Join(example, "envoy.yaml"))
	if err != nil {
		return err
	}
	text := string(raw)
	for _, e := range append(edits, d.usual()...) {
		if !strings.Contains(text, e.old) {
			return fmt.Errorf("%s/envoy.yaml has no %q, which is to become %q", example, e.old, e.becomes)
		}
		text = strings.ReplaceAll(text, e.old, e.becomes)
	}
	path := filepath.Join(d.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	if d.envoy != nil {
		d.envoy.Kill()
		d.client.CloseIdleConnections()
	}
	changed := ""
	if len(edits) > 0 && !strings.Contains(edits[0].becomes, "\n") {
		changed = "  # " + edits[0].becomes
	}
	d.printf("   $ envoy -c %s%s\n", path, changed)
	d.envoy, err = d.start(ctx, "envoy", &proc.Server{
		Program: d.envoyProgram, Args: []string{"-c", path, "--disable-hot-restart", "--concurrency", "2", "--log-level", "warn"},
		Ready: proc.Answers("http://" + d.addr("admin") + "/ready"),
	})
	return err
}

// local returns the variables that differ from compose.yaml.
func local() []string {
	return []string{"RUNTIME_ROOT=" + example, "ADMIN=true", "DRAIN_DELAY=0s", "HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1"}
}

// startServer starts ratelimitd with the variables of the example's compose.yaml, local, and more.
func (d *demo) startServer(ctx context.Context, name, grpcPort string, more ...string) (*proc.Server, error) {
	var compose struct {
		Services struct {
			Ratelimitd struct{ Environment map[string]string }
		}
	}
	text, err := os.ReadFile(filepath.Join(example, "compose.yaml"))
	if err == nil {
		err = yaml.Unmarshal(text, &compose)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the variables of ratelimitd: %w", err)
	}
	s := &proc.Server{Program: d.serverProgram, Ready: proc.Listens("127.0.0.1:" + grpcPort)}
	for name, value := range compose.Services.Ratelimitd.Environment {
		s.Env = append(s.Env, name+"="+value)
	}
	s.Env = append(append(append(s.Env, local()...), "GRPC_PORT="+grpcPort), more...) // the last of equal names wins
	return d.start(ctx, name, s)
}

// startRedis starts a Redis that listens on a unix socket, so that it needs no port.
func (d *demo) startRedis(ctx context.Context) (socket string, err error) {
	socket = filepath.Join(d.dir, "redis.sock")
	d.redis, err = d.start(ctx, "redis", &proc.Server{
		Program: d.redisProgram, Args: []string{"--port", "0", "--unixsocket", socket, "--save", "", "--dir", d.dir},
		Ready: func(ctx context.Context) error {
			conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
			if err != nil {
				return err
			}
			return conn.Close()
		},
	})
	return socket, err
}
