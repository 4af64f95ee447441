package main

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// clock is the wall clock of one process, separate from the machine's. On Linux, programs read the time through code that the
// kernel maps into them, the vDSO. clock replaces this code in the process by code that adds an offset. This works for any
// program, including static ones. The monotonic clock is unchanged.
type clock struct {
	process *process
	offset  int64 // address of the offset, in seconds
}

// clock takes over the clock of a process, which should be idle.
func (p *process) clock(ctx context.Context) *clock {
	mem, err := os.OpenFile(p.memory(), os.O_RDWR, 0)
	p.e.must(err)
	defer func() { _ = mem.Close() }()
	begin, code, err := p.vdso(mem)
	p.e.must(err)
	p.e.must(p.Pause())
	defer func() { _ = p.Resume() }()
	p.e.await(ctx, "a process that does not read the time", func() bool { return p.standsOutside(begin, begin+uint64(len(code))) })
	c := &clock{process: p}
	p.e.must(c.patch(mem, begin, code))
	return c
}

func (p *process) memory() string { return fmt.Sprintf("/proc/%d/mem", p.PID()) }

// vdso returns the address and the contents of the process's vDSO.
func (p *process) vdso(mem *os.File) (begin uint64, code []byte, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.PID()))
	if err != nil {
		return 0, nil, err
	}
	for line := range strings.Lines(string(maps)) {
		if !strings.Contains(line, "[vdso]") {
			continue
		}
		var end uint64
		if _, err := fmt.Sscanf(line, "%x-%x", &begin, &end); err != nil {
			return 0, nil, err
		}
		code = make([]byte, end-begin)
		_, err = mem.ReadAt(code, int64(begin))
		return begin, code, err
	}
	return 0, nil, errors.New("the process has no vDSO, by which its clock could be set")
}

// standsOutside reports whether all threads of the process have stopped outside an address range.
func (p *process) standsOutside(from, to uint64) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p.PID()))
	for _, t := range threads {
		at, err := os.ReadFile(filepath.Join(t, "syscall"))
		stat, err2 := os.ReadFile(filepath.Join(t, "stat"))
		if err != nil || err2 != nil || !strings.Contains(string(stat), ") T ") {
			return false
		}
		fields := strings.Fields(string(at)) // the last field is the program counter
		var pc uint64
		if _, err := fmt.Sscanf(fields[len(fields)-1], "0x%x", &pc); err != nil || pc >= from && pc < to {
			_ = p.Resume() // to stop elsewhere
			time.Sleep(time.Millisecond)
			_ = p.Pause()
			return false
		}
	}
	return err == nil && len(threads) > 0
}

// patch replaces the vDSO's functions for the time of day. It puts the offset behind the first one.
func (c *clock) patch(mem *os.File, begin uint64, code []byte) error {
	file, err := elf.NewFile(bytes.NewReader(code))
	if err != nil {
		return err
	}
	if file.Machine != elf.EM_X86_64 {
		return errors.New("clocks of processes can be set on amd64 only")
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return err
	}
	found := map[string]elf.Symbol{}
	for _, s := range symbols {
		found[s.Name] = s
	}
	const room = 64
	c.offset = int64(begin + found["__vdso_clock_gettime"].Value + room)
	for name, body := range timeFunctions() {
		s := found[name]
		if s.Size < uint64(len(body)) || name == "__vdso_clock_gettime" && s.Size < room+8 {
			return fmt.Errorf("the vDSO has no room for another %s", name)
		}
		at := int64(begin + s.Value)
		i := bytes.Index(body, []byte{0xff, 0xff, 0xff, 0xff}) // placeholder for the distance of the offset from the next instruction
		binary.LittleEndian.PutUint32(body[i:], uint32(c.offset-(at+int64(i)+4)))
		if _, err := mem.WriteAt(body, at); err != nil {
			return err
		}
	}
	_, err = mem.WriteAt(make([]byte, 8), c.offset)
	return err
}

// timeFunctions returns code that calls the kernel and adds the offset to the seconds of the time of day.
func timeFunctions() map[string][]byte {
	return map[string][]byte{
		"__vdso_clock_gettime": {
			0xb8, syscall.SYS_CLOCK_GETTIME, 0, 0, 0, 0x0f, 0x05, // mov eax, …; syscall
			0x85, 0xc0, 0x75, 0x0e, // test eax, eax; jnz end
			0x85, 0xff, 0x75, 0x0a, // test edi, edi (CLOCK_REALTIME); jnz end
			0x48, 0x8b, 0x15, 0xff, 0xff, 0xff, 0xff, // mov rdx, [offset]
			0x48, 0x01, 0x16, // add [rsi], rdx
			0xc3, // end: ret
		},
		"__vdso_gettimeofday": {
			0xb8, syscall.SYS_GETTIMEOFDAY, 0, 0, 0, 0x0f, 0x05,
			0x85, 0xc0, 0x75, 0x0f, // test eax, eax; jnz end
			0x48, 0x85, 0xff, 0x74, 0x0a, // test rdi, rdi; jz end
			0x48, 0x8b, 0x15, 0xff, 0xff, 0xff, 0xff,
			0x48, 0x01, 0x17, // add [rdi], rdx
			0xc3,
		},
		"__vdso_time": {
			0xb8, syscall.SYS_TIME, 0, 0, 0, 0x0f, 0x05,
			0x48, 0x03, 0x05, 0xff, 0xff, 0xff, 0xff, // add rax, [offset]
			0x48, 0x85, 0xff, 0x74, 0x03, // test rdi, rdi; jz end
			0x48, 0x89, 0x07, // mov [rdi], rax
			0xc3,
		},
	}
}

// set sets the clock's offset from the machine's clock in seconds.
func (c *clock) set(seconds int64) {
	mem, err := os.OpenFile(c.process.memory(), os.O_RDWR, 0)
	c.process.e.must(err)
	_, err = mem.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(seconds)), c.offset)
	c.process.e.must(errors.Join(err, mem.Close()))
}
