package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"
)

// pipelined is the number of pairs in a pipeline of loadPairs.
const pipelined = 32

// pairKeys is the number of keys of loadPairs.
const pairKeys = 100_000

// loadPairs loads a Redis with pairs of INCRBY and EXPIRE on one connection for c.warmup and c.duration, and returns
// their rate and cost.
func (c config) loadPairs(ctx context.Context, addr string) (sample, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return sample{}, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // interrupts reads
	replies := bufio.NewReaderSize(conn, 1<<16)
	if _, err := playPairs(conn, replies, c.warmup); err != nil {
		return sample{}, err
	}
	before, err := redisTime(ctx, addr)
	if err != nil {
		return sample{}, err
	}
	begin := time.Now()
	pairs, err := playPairs(conn, replies, c.duration)
	if err != nil {
		return sample{}, err
	}
	took := time.Since(begin).Seconds()
	after, err := redisTime(ctx, addr)
	return pairsCost(pairs, took, after-before), err
}

// playPairs sends pairs for some time, at least one pipeline, and returns their number.
func playPairs(w io.Writer, replies *bufio.Reader, lasts time.Duration) (pairs int64, err error) {
	var batch []byte
	for end := time.Now().Add(lasts); pairs == 0 || time.Now().Before(end); pairs += pipelined {
		batch = batch[:0]
		for range pipelined {
			batch = appendPair(batch, rand.IntN(pairKeys))
		}
		if _, err := w.Write(batch); err != nil {
			return pairs, err
		}
		for range 2 * pipelined {
			reply, err := replies.ReadSlice('\n')
			if err != nil {
				return pairs, err
			}
			if reply[0] != ':' {
				return pairs, fmt.Errorf("a pair of commands: Redis answered %q", reply)
			}
		}
	}
	return pairs, nil
}

// appendPair appends the commands that count one hit of a key, with a name like envoyproxy/ratelimit's.
func appendPair(b []byte, key int) []byte {
	name := "pairs_user_u" + strconv.Itoa(key) + "_1767225600"
	for _, command := range [][3]string{{"INCRBY", name, "1"}, {"EXPIRE", name, "31536000"}} {
		b = append(b, "*3\r\n"...)
		for _, word := range command {
			b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(word), word)
		}
	}
	return b
}

// redisTime returns the processor time of a Redis since its start, in seconds.
func redisTime(ctx context.Context, addr string) (sum float64, err error) {
	lines, err := info(ctx, addr, "cpu")
	if err != nil {
		return 0, err
	}
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := strconv.ParseFloat(lines[name], 64)
		if err != nil {
			return 0, fmt.Errorf("reading what Redis says of %s: %w", name, err)
		}
		sum += seconds
	}
	return sum, nil
}

// info returns the fields of a section of Redis' INFO.
func info(ctx context.Context, addr, section string) (map[string]string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "INFO "+section+"\r\nQUIT\r\n"); err != nil {
		return nil, err
	}
	all, err := io.ReadAll(conn)
	if err != nil {
		return nil, err
	}
	lines := map[string]string{}
	for line := range strings.SplitSeq(string(all), "\r\n") {
		if name, value, ok := strings.Cut(line, ":"); ok {
			lines[name] = value
		}
	}
	return lines, nil
}

// pairsCost returns the rate and cost of pairs from the elapsed time and Redis' processor time in seconds.
func pairsCost(pairs int64, took, spent float64) sample {
	s := sample{Requests: pairs, Rate: float64(pairs) / took}
	s.CPU.Redis = spent * 1e6 / float64(pairs)
	return s
}
