// Command client asks a rate-limit service whether a user's request may pass.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func main() {
	if len(os.Args) != 5 {
		log.Fatal("usage: client ADDRESS DOMAIN KEY VALUE, such as: client localhost:8081 edge user alice")
	}
	conn, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	answer, err := ratelimit.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &ratelimit.RateLimitRequest{
		Domain: os.Args[2],
		Descriptors: []*common.RateLimitDescriptor{{
			Entries: []*common.RateLimitDescriptor_Entry{{Key: os.Args[3], Value: os.Args[4]}},
		}},
	})
	if err != nil {
		log.Fatal(err) // no answer: whether to let the request pass or to refuse it is the caller's choice
	}
	status := answer.Statuses[0]
	fmt.Println(answer.OverallCode, "left:", status.LimitRemaining, "reset:", status.DurationUntilReset.AsDuration())
}
