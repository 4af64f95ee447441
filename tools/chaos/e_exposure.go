package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	rpc "google.golang.org/grpc/status"
)

// exposure is E29.
func exposure(ctx context.Context, e *env) {
	here, err := ownAddress()
	e.must(err)
	reached(ctx, e, here)
	secrets(ctx, e)
}

// ownAddress returns a non-loopback address of this machine. A client that connects to it also has it as its source address.
func ownAddress() (string, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for _, a := range all {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && !ip.IP.IsLoopback() {
			return ip.IP.String(), nil
		}
	}
	return "", errors.New("this machine has no address but loopback, from which to look at the server as others do")
}

// ports returns the TCP ports on which the process listens.
func (p *process) ports() (found []string) {
	mine := map[string]bool{}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.PID()))
	p.e.must(err)
	for _, fd := range fds {
		to, _ := os.Readlink(fd) // it may be closed already
		mine[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
	}
	for _, table := range []string{"tcp", "tcp6"} {
		lines, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", p.PID(), table))
		p.e.must(err)
		for line := range strings.Lines(string(lines)) {
			const local, state, inode = 1, 3, 9
			f := strings.Fields(line)
			if len(f) <= inode || f[state] != "0A" || !mine[f[inode]] {
				continue
			}
			_, port, _ := strings.Cut(f[local], ":")
			n, err := strconv.ParseUint(port, 16, 16)
			p.e.must(err)
			found = append(found, fmt.Sprint(n))
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// reached connects to servers from another address.
func reached(ctx context.Context, e *env, here string) {
	r := e.redis(ctx)
	open := e.startServer(ctx, endless, "REDIS_URL="+r.addr, "HOST=0.0.0.0", "DEBUG_HOST=0.0.0.0", "GRPC_HOST=0.0.0.0",
		"USE_PROMETHEUS=true", "PROMETHEUS_ADDR=:"+e.port(ctx))
	ports := open.ports()
	told := 0
	for _, port := range ports {
		for _, page := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/cmdline", "/debug/pprof/profile?seconds=1"} {
			if ok := served(ctx, "http://"+net.JoinHostPort(here, port)+page); ok {
				told++
				e.note("others get port %s, %s", port, page)
			}
		}
	}
	e.measured(told == 0, "pprof: %d pages on %d ports for others", told, len(ports))
	if !e.other {
		_, port, _ := net.SplitHostPort(open.GRPC)
		others := resets(ctx, net.JoinHostPort(here, port))
		e.measured(others == codes.PermissionDenied || others == codes.Unauthenticated, "admin: %s for others", others)
	}
	open.Kill()
	closed := e.startServer(ctx, endless, "REDIS_URL="+r.addr, "GRPC_HOST=0.0.0.0")
	ports = closed.ports()
	var reachable []string
	for _, port := range ports {
		if proc.Listens(net.JoinHostPort(here, port))(ctx) == nil {
			reachable = append(reachable, port)
		}
	}
	within := served(ctx, "http://"+closed.Debug+"/debug/pprof/heap")
	e.measured(within, "pprof on loopback: %s", yes(within))
	_, port, _ := net.SplitHostPort(closed.GRPC)
	e.measured(len(ports) > 1 && slices.Equal(reachable, []string{port}), "both hosts on loopback: %d of %d ports reached by others", len(reachable), len(ports))
}

// served reports whether a page is available.
func served(ctx context.Context, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return proc.Answers(url)(ctx) == nil
}

// resets calls Reset of the admin API at an address, and returns the status code.
func resets(ctx context.Context, addr string) codes.Code {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return rpc.Code(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	entries := []*adminv1.Entry{{Key: "user", Value: "a"}}
	_, err = adminv1.NewAdminServiceClient(conn).Reset(ctx, &adminv1.ResetRequest{Domain: "shop", Entries: entries})
	return rpc.Code(err)
}
