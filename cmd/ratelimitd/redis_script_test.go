package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

type redisKey struct{}

// redisOfScript is the redis-server of a script. It ends with all scripts.
type redisOfScript struct {
	tb     testing.TB
	server *redistest.Server
}

func redisCommand(ts *testscript.TestScript, _ bool, args []string) {
	r := ts.Value(redisKey{}).(*redisOfScript)
	if len(args) == 0 || (r.server == nil) != (args[0] == "start") {
		ts.Fatalf("redis takes start first, and then sentinel, twemproxy, kill, restart, stop, cont or cli")
	}
	switch args[0] {
	case "start":
		r.server = redistest.Start(r.tb, args[1:]...)
		ts.Setenv("REDIS", r.server.Addr())
		ts.Setenv("REDIS_PORT", fmt.Sprint(r.server.Port()))
		ts.Defer(r.server.Kill)
	case "sentinel":
		ts.Setenv("SENTINEL", redistest.Sentinels(r.tb, r.server, args[1], 1, args[2:]...)[0].Addr())
	case "twemproxy": // at the socket args[1], for the running Redis
		proxy := redistest.Twemproxy(r.tb, []string{r.server.Addr()}, "listen: "+ts.MkAbs(args[1])+" 0600")
		ts.Defer(proxy.Kill)
	case "kill":
		r.server.Kill()
	case "restart":
		r.server.Restart()
	case "stop":
		r.server.Stop()
	case "cont":
		r.server.Cont()
	case "cli":
		_, err := fmt.Fprintln(ts.Stdout(), r.server.CLI(args[1:]...))
		ts.Check(err)
	default:
		ts.Check(errors.New("redis " + args[0] + ": no such command"))
	}
}
