package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"time"
)

// redisTime is how long a command to Redis may take.
const redisTime = 10 * time.Second

// redisDo sends one command to a Redis, over a connection of its own, and returns the error that is its reply, if it is one.
func redisDo(ctx context.Context, addr string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, redisTime)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	end, _ := ctx.Deadline()
	if err := c.SetDeadline(end); err != nil {
		return err
	}
	var command strings.Builder
	fmt.Fprintf(&command, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&command, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := c.Write([]byte(command.String())); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	if line = strings.TrimSpace(line); strings.HasPrefix(line, "-") {
		return fmt.Errorf("%s: %s", args[0], line)
	}
	return nil
}
