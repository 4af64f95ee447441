package admission

import (
	"os"
	"runtime"
	"syscall"
)

// poller lets a goroutine wait until the runtime has asked the kernel which connections can be read. It does so by itself
// only when nothing else is left to run, or every ten milliseconds, and then those that read wait behind all that runs.
type poller struct {
	r, w *os.File
	raw  syscall.RawConn
}

// newPoller returns a poller, or nil if there can be none; its pass then lets others run and no more.
func newPoller() *poller {
	r, w, err := os.Pipe()
	if err != nil {
		return nil
	}
	raw, err := r.SyscallConn()
	if err != nil {
		_, _ = r.Close(), w.Close()
		return nil
	}
	return &poller{r: r, w: w, raw: raw}
}

// pass returns when all goroutines that could run have run, and the runtime has asked the kernel: that is how it finds out that
// the pipe of p can be read.
func (p *poller) pass() {
	if p == nil {
		runtime.Gosched()
		return
	}
	var b [1]byte
	written, failed := false, false
	err := p.raw.Read(func(uintptr) bool {
		if written {
			return true
		}
		_, err := p.w.Write(b[:])
		written, failed = true, err != nil
		return failed
	})
	if err != nil || failed {
		runtime.Gosched()
		return
	}
	_, _ = p.r.Read(b[:])
}
