// A program that holds redsync's locks and does what its input says: see README.md.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	pool "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

const retry = 20 * time.Millisecond

var (
	begin = time.Now()
	lines = make(chan string)
)

// What one worker holds.
type worker struct {
	redsync *redsync.Redsync
	locks   map[string]*redsync.Mutex
	work    chan func()
}

func main() {
	// Every request says so, too.
	logging.Disable()
	go print()
	var client *redsync.Redsync
	run("0", func() ([]string, error) {
		var err error
		client, err = connect(os.Args[1:])
		return []string{version()}, err
	})
	workers := map[string]*worker{}
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		words := strings.Split(input.Text(), " ")
		number, name, command, words := words[0], words[1], words[2], words[3:]
		if command == "clock" {
			run(number, func() ([]string, error) { return nil, nil })
			continue
		}
		if workers[name] == nil {
			workers[name] = start(client)
		}
		w := workers[name]
		w.work <- func() { run(number, func() ([]string, error) { return w.obey(command, words) }) }
	}
}

func connect(urls []string) (*redsync.Redsync, error) {
	var pools []pool.Pool
	for _, url := range urls {
		options, err := redis.ParseURL(url)
		if err != nil {
			return nil, err
		}
		client := redis.NewClient(options)
		if err := client.Ping(context.Background()).Err(); err != nil {
			return nil, err
		}
		pools = append(pools, goredis.NewPool(client))
	}
	return redsync.New(pools...), nil
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

// It does one command after the other.
func start(client *redsync.Redsync) *worker {
	w := &worker{client, map[string]*redsync.Mutex{}, make(chan func(), 64)}
	go func() {
		for work := range w.work {
			work()
		}
	}()
	return w
}

func (w *worker) obey(command string, words []string) ([]string, error) {
	name, err := url.PathUnescape(words[0])
	if err != nil {
		return nil, err
	}
	var times [2]time.Duration
	for i, word := range words[1:] {
		millis, err := strconv.Atoi(word)
		if err != nil {
			return nil, err
		}
		times[i] = time.Duration(millis) * time.Millisecond
	}
	switch command {
	case "acquire":
		return w.acquire(name, times[0], times[1])
	case "release":
		return nil, done(w.locks[name].Unlock())
	case "extend":
		// The lease belongs to the mutex.
		value := redsync.WithValue(w.locks[name].Value())
		w.locks[name] = w.redsync.NewMutex(name, redsync.WithExpiry(times[0]), value)
		return nil, done(w.locks[name].Extend())
	}
	return nil, fmt.Errorf("unknown command %s", command)
}

func (w *worker) acquire(name string, lease, wait time.Duration) ([]string, error) {
	tries := redsync.WithTries(int((wait+retry-1)/retry) + 1)
	mutex := w.redsync.NewMutex(name, redsync.WithExpiry(lease), tries, redsync.WithRetryDelay(retry))
	err := mutex.Lock()
	var taken *redsync.ErrTaken
	var node *redsync.ErrNodeTaken
	if errors.Is(err, redsync.ErrFailed) || errors.As(err, &taken) || errors.As(err, &node) {
		return []string{"false"}, nil
	}
	w.locks[name] = mutex
	return []string{"true"}, err
}

func done(done bool, err error) error {
	if err == nil && !done {
		err = errors.New("the lock was not held")
	}
	return err
}

func run(number string, work func() ([]string, error)) {
	start := time.Since(begin)
	words, err := work()
	end := time.Since(begin)
	answer := []string{number, fmt.Sprint(start.Nanoseconds()), fmt.Sprint(end.Nanoseconds()),
		fmt.Sprint(time.Now().UnixMilli())}
	if err != nil {
		message := strings.Join(strings.Fields(err.Error()), " ")
		answer = append(answer, "err", fmt.Sprintf("%T: %s", err, message))
	} else {
		answer = append(append(answer, "ok"), words...)
	}
	lines <- strings.Join(answer, " ")
}

func print() {
	for line := range lines {
		fmt.Println(line)
	}
}
