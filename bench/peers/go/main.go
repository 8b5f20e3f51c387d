// main.go - redsync on one server in the scenarios of bench/peers: goroutines, in `hot` and mixed with clients of their own.
// SPDX-License-Identifier: Apache-2.0
package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

const (
	library = "github.com/go-redsync/redsync/v4"
	warm    = time.Second // what is done in the first second is not counted
	tasks   = 64
	clients = 8               // of `hot`, and of a mixed scenario on both sides together
	mixed   = 2               // of those, ours
	lease   = 5 * time.Second // in a mixed scenario
)

func die(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "redsync:", err)
		os.Exit(1)
	}
}

func dial(port string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port})
}

func connect(port string) *redsync.Redsync {
	return redsync.New(goredis.NewPool(dial(port)))
}

// By default it gives up after 32 tries. Its pauses stay as they are: 50 to 250 ms, drawn at random.
func open(client *redsync.Redsync, scenario string, number int, more ...redsync.Option) *redsync.Mutex {
	return client.NewMutex(fmt.Sprintf("redsync:%s/%d", scenario, number), append(more, redsync.WithTries(math.MaxInt32))...)
}

func unlock(mutex *redsync.Mutex) {
	_, err := mutex.Unlock()
	die(err)
}

// How long each pair took that began after begin and ended before end.
func pairs(mutex *redsync.Mutex, begin, end time.Time) []time.Duration {
	var took []time.Duration
	for now := time.Now(); now.Before(end); {
		before := now
		die(mutex.Lock())
		unlock(mutex)
		now = time.Now()
		if !before.Before(begin) && now.Before(end) {
			took = append(took, now.Sub(before))
		}
	}
	return took
}

func runPair(port string, length time.Duration) string {
	begin := time.Now().Add(warm)
	took := pairs(open(connect(port), "pair", 0), begin, begin.Add(length))
	slices.Sort(took)
	return fmt.Sprintf("%.1f", float64(took[len(took)/2])/1e3)
}

func runMany(port string, length time.Duration) string {
	client := connect(port)
	begin := time.Now().Add(warm)
	var counts [tasks]int
	var group sync.WaitGroup
	for i := range tasks {
		group.Add(1)
		go func() {
			defer group.Done()
			counts[i] = len(pairs(open(client, "many", i), begin, begin.Add(length)))
		}()
	}
	group.Wait()
	sum := 0
	for _, count := range counts {
		sum += count
	}
	return fmt.Sprintf("%.0f", float64(sum)/length.Seconds())
}

// One client, which does hold while it holds: how often, and its longest wait, in ms.
func contend(mutex *redsync.Mutex, ready, hold func(), length time.Duration) (holds, longest float64) {
	die(mutex.Lock())
	unlock(mutex)
	ready()
	begin := time.Now().Add(warm)
	end := begin.Add(length)
	for now := time.Now(); now.Before(end); now = time.Now() {
		die(mutex.Lock())
		got := time.Now()
		hold()
		unlock(mutex)
		if got.Before(begin) {
			continue
		}
		if got.Before(end) {
			holds++
		}
		longest = max(longest, got.Sub(now).Seconds()*1e3)
	}
	return holds, longest
}

func runHot(port string, length time.Duration) string {
	var holds, longest [clients]float64
	var ready, done sync.WaitGroup
	ready.Add(clients)
	for i := range clients {
		done.Add(1)
		go func() {
			defer done.Done()
			all := func() { ready.Done(); ready.Wait() }
			holds[i], longest[i] = contend(open(connect(port), "hot", 0), all, func() {}, length)
		}()
	}
	done.Wait()
	var sum, squares float64
	for _, count := range holds {
		sum += count
		squares += count * count
	}
	jain := 0.0
	if squares > 0 {
		jain = sum * sum / (clients * squares)
	}
	return fmt.Sprintf("%.0f %.1f %.3f", sum/length.Seconds(), slices.Max(longest[:]), jain)
}

// Two clients beside those of libdlock. All count on the server, by a connection of their own, who is ready and who holds.
func runMixed(port string, length time.Duration) string {
	var holds, longest [mixed]float64
	var violations atomic.Int64
	var done sync.WaitGroup
	for i := range mixed {
		done.Add(1)
		go func() {
			defer done.Done()
			server := dial(port)
			add := func(what string, by int64) int64 {
				is, err := server.IncrBy(context.Background(), "redsync:mixed/"+what, by).Result()
				die(err)
				return is
			}
			all := func() {
				for n := add("ready", 1); n < clients; n = add("ready", 0) {
					time.Sleep(10 * time.Millisecond)
				}
			}
			hold := func() {
				if add("inside", 1) != 1 {
					violations.Add(1)
				}
				time.Sleep(time.Millisecond)
				add("inside", -1)
			}
			mutex := open(connect(port), "mixed", 0, redsync.WithExpiry(lease))
			holds[i], longest[i] = contend(mutex, all, hold, length)
		}()
	}
	done.Wait()
	seconds := length.Seconds()
	return fmt.Sprintf("%.0f %.2f %.1f %d", (holds[0]+holds[1])/seconds, slices.Min(holds[:])/seconds, slices.Max(longest[:]),
		violations.Load())
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == library {
			return module.Version[1:]
		}
	}
	return "unknown"
}

func main() {
	scenarios := map[string]func(string, time.Duration) string{
		"pair": runPair, "many": runMany, "hot": runHot, "mixed-redsync": runMixed,
	}
	if len(os.Args) != 4 || scenarios[os.Args[2]] == nil {
		fmt.Fprintln(os.Stderr, "usage: redsync PORT pair|many|hot|mixed-redsync SECONDS")
		os.Exit(64)
	}
	seconds, err := strconv.Atoi(os.Args[3])
	die(err)
	figures := scenarios[os.Args[2]](os.Args[1], time.Duration(seconds)*time.Second)
	fmt.Println("redsync", version(), os.Args[2], figures)
}
