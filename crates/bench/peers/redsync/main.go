// redsync as a contender: `redsync URL LEASE_MS`. The protocol: ../README.md.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"golang.org/x/sys/unix"
)

// A counter on a cache line of its own.
type counter struct {
	value atomic.Int64
	_     [120]byte
}

type crew struct {
	stopped  atomic.Bool
	counters []counter
	workers  sync.WaitGroup
	failure  atomic.Pointer[error]
}

type peer struct {
	url     string
	lease   time.Duration
	redsync *redsync.Redsync
	crew    *crew
	held    *redsync.Mutex
}

func main() {
	// Some servers are killed on purpose.
	logging.Disable()
	lease, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	p := &peer{url: os.Args[1], lease: time.Duration(lease) * time.Millisecond}
	if p.redsync, _, err = connect(p.url); err != nil {
		panic(err)
	}
	fmt.Printf("ready %s (%s)\n", version(), runtime.Version())
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		answer, err := p.obey(strings.Fields(input.Text()))
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println(strings.TrimSpace("ok " + answer))
	}
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if strings.HasSuffix(module.Path, "redsync/v4") {
			return strings.TrimPrefix(module.Version, "v")
		}
	}
	return "unknown"
}

// A pool for each server with the defaults of go-redis, as the examples of redsync have it.
func connect(url string) (*redsync.Redsync, []*redis.Client, error) {
	var pools []redsyncredis.Pool
	var clients []*redis.Client
	for _, url := range strings.Split(strings.TrimPrefix(url, "quorum:"), ",") {
		options, err := redis.ParseURL(url)
		if err != nil {
			return nil, nil, err
		}
		client := redis.NewClient(options)
		clients = append(clients, client)
		pools = append(pools, goredis.NewPool(client))
	}
	return redsync.New(pools...), clients, nil
}

func (p *peer) obey(words []string) (string, error) {
	switch words[0] {
	case "start":
		workers, err := strconv.Atoi(words[3])
		if err != nil {
			return "", err
		}
		return "", p.start(words[1], words[2], workers)
	case "count":
		return p.crew.counts()
	case "stop":
		p.crew.stopped.Store(true)
		p.crew.workers.Wait()
		return p.crew.counts()
	case "acquire":
		p.held = p.mutex(words[1])
		return strconv.FormatInt(now(), 10), acquire(p.held)
	case "release":
		start := now()
		return strconv.FormatInt(start, 10), release(p.held)
	case "wait":
		mutex := p.mutex(words[1])
		if err := acquire(mutex); err != nil {
			return "", err
		}
		acquired := now()
		return strconv.FormatInt(acquired, 10), release(mutex)
	case "connect":
		return p.connect(words[1])
	}
	return "", fmt.Errorf("unknown command %v", words)
}

func (p *peer) start(work, name string, workers int) error {
	c := &crew{counters: make([]counter, workers)}
	for number := range workers {
		own := name
		if work == "own" {
			own = fmt.Sprintf("%s:%06d", name, number)
		} else if work != "one" {
			return fmt.Errorf("redsync has no lock for %s", work)
		}
		c.workers.Add(1)
		go p.work(c, number, own)
	}
	p.crew = c
	return nil
}

// The readme makes one mutex for a name and uses it again.
func (p *peer) work(c *crew, number int, name string) {
	defer c.workers.Done()
	mutex := p.mutex(name)
	for !c.stopped.Load() {
		err := acquire(mutex)
		if err == nil {
			err = release(mutex)
		}
		if err != nil {
			c.failure.CompareAndSwap(nil, &err)
			return
		}
		c.counters[number].value.Add(1)
	}
}

func (c *crew) counts() (string, error) {
	if failure := c.failure.Load(); failure != nil {
		return "", *failure
	}
	var answer strings.Builder
	fmt.Fprint(&answer, now())
	for i := range c.counters {
		fmt.Fprint(&answer, " ", c.counters[i].value.Load())
	}
	return answer.String(), nil
}

func (p *peer) connect(name string) (string, error) {
	start := time.Now()
	other, clients, err := connect(p.url)
	if err != nil {
		return "", err
	}
	for _, client := range clients {
		defer client.Close()
	}
	mutex := other.NewMutex(name, redsync.WithExpiry(p.lease))
	if err := acquire(mutex); err != nil {
		return "", err
	}
	span := time.Since(start)
	return strconv.FormatInt(span.Nanoseconds(), 10), release(mutex)
}

func (p *peer) mutex(name string) *redsync.Mutex {
	return p.redsync.NewMutex(name, redsync.WithExpiry(p.lease))
}

// Lock gives up after 32 attempts, and an attempt after 5 % of the lease; a user who needs the lock calls it
// again.
func acquire(mutex *redsync.Mutex) error {
	for {
		err := mutex.Lock()
		var taken *redsync.ErrTaken
		var node *redsync.ErrNodeTaken
		isBusy := errors.Is(err, redsync.ErrFailed) || errors.As(err, &taken) || errors.As(err, &node)
		if !isBusy && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
}

func release(mutex *redsync.Mutex) error {
	released, err := mutex.Unlock()
	if err == nil && !released {
		err = errors.New("the lock was not held")
	}
	return err
}

// Nanoseconds of a clock that all processes of this machine share.
func now() int64 {
	var time unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &time); err != nil {
		panic(err)
	}
	return time.Nano()
}
