package memcached

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// Examine examines everything that counters need of memcached. It counts on counters of its own, which it removes. It must be
// called instead of Run, and b closed after it.
func (b *Backend) Examine(ctx context.Context) (all []remote.Finding) {
	fit := true
	for _, name := range b.config.Servers {
		f := remote.Finding{Node: name, Check: "version", Result: remote.Right}
		var err error
		if f.Text, err = b.version(ctx, name); err != nil {
			fit, f.Result, f.Text = false, remote.Failure, classify(name, err).Text
		}
		all = append(all, f)
	}
	if fit {
		all = append(all, remote.Try(ctx, b, b.Run))
	}
	return all
}

// version asks a server for its version.
func (b *Backend) version(ctx context.Context, name string) (string, error) {
	c, err := b.newServer(name).dial(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }() // nothing is outstanding
	if err = c.SetDeadline(time.Now().Add(b.config.DialTimeout)); err != nil {
		return "", err
	}
	if _, err = io.WriteString(c, "version\r\n"); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(io.LimitReader(c, 512)).ReadString('\n')
	if err == nil && !strings.HasPrefix(line, "VERSION ") {
		err = errors.New(responseLine + line)
	}
	return strings.TrimSpace(strings.Replace(line, "VERSION", "memcached", 1)), err
}
