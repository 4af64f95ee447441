// Command idle is a RateLimitService that decides nothing: grpc-go with default options and generated codec, and an OK
// status for each descriptor. It measures the minimum cost of a gRPC call. With -tuned, it has as many stream workers as
// ratelimitd; GOGC sets the frequency of garbage collections.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
)

// streamWorkers is the number of workers in internal/process/grpcserver.
const streamWorkers = 128

type server struct {
	ratelimit.UnimplementedRateLimitServiceServer
}

func (server) ShouldRateLimit(_ context.Context, req *ratelimit.RateLimitRequest) (*ratelimit.RateLimitResponse, error) {
	statuses := make([]*ratelimit.RateLimitResponse_DescriptorStatus, len(req.GetDescriptors()))
	for i := range statuses {
		statuses[i] = &ratelimit.RateLimitResponse_DescriptorStatus{Code: ratelimit.RateLimitResponse_OK}
	}
	return &ratelimit.RateLimitResponse{OverallCode: ratelimit.RateLimitResponse_OK, Statuses: statuses}, nil
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "idle:", err)
		os.Exit(1)
	}
}

// run serves on an address until the process is killed.
func run(args []string) error {
	var options []grpc.ServerOption
	if len(args) > 0 && args[0] == "-tuned" {
		options, args = append(options, grpc.NumStreamWorkers(streamWorkers)), args[1:]
	}
	if len(args) != 1 {
		return errors.New("want an address to serve on: idle [-tuned] HOST:PORT")
	}
	listener, err := net.Listen("tcp", args[0])
	if err != nil {
		return err
	}
	s := grpc.NewServer(options...)
	ratelimit.RegisterRateLimitServiceServer(s, server{})
	return s.Serve(listener)
}
