// main.go - redsync on one server in the scenarios of bench/peers: goroutines, in `hot` with clients of their own.
// SPDX-License-Identifier: Apache-2.0
package main

import (
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

const (
	library = "github.com/go-redsync/redsync/v4"
	warm    = time.Second // what is done in the first second is not counted
	tasks   = 64
	clients = 8
)

func die(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "redsync:", err)
		os.Exit(1)
	}
}

func connect(port string) *redsync.Redsync {
	return redsync.New(goredis.NewPool(redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port})))
}

// By default it gives up after 32 tries. Its pauses stay as they are: 50 to 250 ms, drawn at random.
func open(client *redsync.Redsync, scenario string, number int) *redsync.Mutex {
	return client.NewMutex(fmt.Sprintf("redsync:%s/%d", scenario, number), redsync.WithTries(math.MaxInt32))
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

func runHot(port string, length time.Duration) string {
	var holds, longest [clients]float64
	var ready, done sync.WaitGroup
	ready.Add(clients)
	for i := range clients {
		done.Add(1)
		go func() {
			defer done.Done()
			mutex := open(connect(port), "hot", 0)
			die(mutex.Lock())
			unlock(mutex)
			ready.Done()
			ready.Wait()
			begin := time.Now().Add(warm)
			end := begin.Add(length)
			for now := time.Now(); now.Before(end); now = time.Now() {
				die(mutex.Lock())
				got := time.Now()
				unlock(mutex)
				if got.Before(begin) {
					continue
				}
				if got.Before(end) {
					holds[i]++
				}
				longest[i] = max(longest[i], got.Sub(now).Seconds()*1e3)
			}
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
	scenarios := map[string]func(string, time.Duration) string{"pair": runPair, "many": runMany, "hot": runHot}
	if len(os.Args) != 4 || scenarios[os.Args[2]] == nil {
		fmt.Fprintln(os.Stderr, "usage: redsync PORT pair|many|hot SECONDS")
		os.Exit(64)
	}
	seconds, err := strconv.Atoi(os.Args[3])
	die(err)
	figures := scenarios[os.Args[2]](os.Args[1], time.Duration(seconds)*time.Second)
	fmt.Println("redsync", version(), os.Args[2], figures)
}
