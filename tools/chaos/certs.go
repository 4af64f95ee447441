package main

import (
	"crypto/x509"
	"fmt"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
)

// issuer lets certstest make certificates outside a test: nothing there may fail.
type issuer struct{ testing.TB }

// Helper implements [testing.TB].
func (issuer) Helper() {}

// Fatal implements [testing.TB].
func (issuer) Fatal(args ...any) { panic(fmt.Sprint(args...)) } //nolint:forbidigo // it must not return, and is not called

// authority is a CA.
type authority struct{ *certstest.CA }

func newAuthority(name string) authority { return authority{certstest.NewCA(issuer{}, name)} }

// issue signs a certificate. What the template leaves out is as for a server on 127.0.0.1 or a client of today.
func (a authority) issue(template x509.Certificate) certstest.Pair {
	return a.Issue(issuer{}, template)
}
