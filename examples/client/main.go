// Command client asks a rate-limit service whether a user's request may pass.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/client"
)

func main() {
	if len(os.Args) != 5 {
		log.Fatal("usage: client ADDRESS DOMAIN KEY VALUE, such as: client localhost:8081 edge user alice")
	}
	c, err := client.New(os.Args[1], os.Args[2], client.Config{Timeout: 2 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	result, err := c.Limiter(client.Pairs(os.Args[3], os.Args[4])).Take(context.Background(), 1)
	if err != nil {
		log.Fatal(err) // no answer: client.Config says whether to let the request pass or to reject it
	}
	verdict := "OK"
	if !result.OK {
		verdict = "OVER_LIMIT"
	}
	fmt.Println(verdict, "left:", result.Remaining, "reset:", result.ResetAfter)
}
