package redis

import (
	"fmt"
	"os"
	"strings"
)

// splitAuth splits user:password at the first colon. Without a colon it is all password.
func splitAuth(auth string) (user, password string) {
	if user, password, ok := strings.Cut(auth, ":"); ok {
		return user, password
	}
	return "", auth
}

// credentials returns what a new connection authenticates with.
func (c *Config) credentials(fromURL string) (user, password string, err error) {
	switch {
	case c.AuthFile != "":
		text, err := os.ReadFile(c.AuthFile)
		if err != nil {
			return "", "", fmt.Errorf("reading the password: %w", err)
		}
		user, password = splitAuth(strings.TrimRight(string(text), "\r\n"))
	case c.Auth != "":
		user, password = splitAuth(c.Auth)
	default:
		user, password = splitAuth(fromURL)
	}
	return user, password, nil
}
