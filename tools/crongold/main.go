// Prints what Kubernetes' cron library makes of random schedules in random zones around clock changes:
// the golden vectors of crates/api/testdata/cron.txt. `go run . 700 1 > ../../crates/api/testdata/cron.txt`.
//
// A line is either `next TAB zone TAB schedule TAB start TAB next1 next2 ...` (Unix seconds, `never` where the search is
// given up) or `error TAB schedule TAB text`.
package main

import (
	"bufio"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// Midnights that do not exist, half hours, a 30-minute summer time, sub-minute offsets. No zone that
// skips a day: there the library searches for ever.
var zones = []string{
	"UTC", "Europe/Berlin", "Europe/London", "America/New_York", "America/St_Johns", "America/Sao_Paulo",
	"America/Asuncion", "America/Havana", "America/Santiago", "Africa/Cairo", "Africa/Monrovia", "Asia/Amman",
	"Asia/Beirut", "Asia/Kathmandu", "Asia/Kolkata", "Asia/Tehran", "Atlantic/Azores", "Antarctica/Troll",
	"Australia/Lord_Howe", "Pacific/Chatham",
}

const (
	first = 315532800  // 1980
	last  = 1577836800 // 2020: later rules may still be changed
	chain = 5
)

var random *rand.Rand

func pick(options ...string) string { return options[random.Intn(len(options))] }

func number(min, max int) string { return strconv.Itoa(min + random.Intn(max-min+1)) }

func field(min, max int, names []string) string {
	one := func() string {
		if names != nil && random.Intn(4) == 0 {
			return pick(names...)
		}
		return number(min, max)
	}
	low, high := min+random.Intn(max-min+1), min+random.Intn(max-min+1)
	if low > high {
		low, high = high, low
	}
	step := strconv.Itoa(1 + random.Intn((max-min)/2+1))
	switch random.Intn(10) {
	case 0, 1, 2:
		return "*"
	case 3:
		return pick("?", "*/1", "*/"+step)
	case 4:
		return one() + "/" + step
	case 5:
		return fmt.Sprintf("%d-%d/%s", low, high, step)
	case 6:
		return fmt.Sprintf("%d-%d", low, high)
	case 7:
		return one() + "," + one() + pick("", ",", ","+one())
	default:
		return one()
	}
}

var months = []string{"JAN", "feb", "Mar", "APR", "may", "Jun", "JUL", "aug", "Sep", "OCT", "nov", "Dec"}
var days = []string{"SUN", "mon", "Tue", "WED", "thu", "Fri", "SAT"}

func schedule() string {
	switch random.Intn(20) {
	case 0:
		return pick("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
	case 1:
		return "@every " + pick("90m", "1h30m10s", "1.5s", "10ms", "36h", "-5m", "2562047h", "61s")
	case 2:
		return pick("0 0 29 2 *", "0 0 31 2 *", "59 23 31 2 *", "0 12 30 2 *", "0 0 29 2 1", "30 2 29 2 ?", ", * * * *", "0 0 , * *", "* , * * *", "0 0 , * 1")
	case 3, 4, 5:
		return pick("30 2 * * *", "0 2 * * *", "0 3 * * *", "30 1 * * *", "0 0 * * *", "15 * * * *", "*/15 1-3 * * *", "0 0 * * 0", "30 0 1 * *", "0 0 1 * *", "45 1,2 * * *", "0 0 13 * 5", "0 0 */2 * 5", "* * * * *", "0 0 1 10 *")
	}
	return strings.Join([]string{field(0, 59, nil), field(0, 23, nil), field(1, 31, nil), field(1, 12, months), field(0, 6, days)}, " ")
}

// Text that is mostly not a schedule.
func mistake() string {
	atom := func() string {
		return pick("*", "?", "0", "5", "60", "7", "-1", "1-", "-", "5-1", "1-2-3", "*/0", "*/x", "1/2/3", "1/x/3", "a", "jan", "mon", "JAN-mar",
			"+5", "99999999999", "99999999999999999999", "1,,2", ",", "1_0", "0x5", "*-5", "*-x", "*/99999999999", "32", "13", "24", "1.5", "é", "a\"b")
	}
	switch random.Intn(8) {
	case 0:
		return pick("@", "@dayly", "@every", "@every ", "@every 5", "@every 5y", "@every x", "@every 1h 2m", "@every 9999999999h", "@every .s", "@Daily", "@daily ", " @daily", "@every -")
	case 1:
		return pick("TZ=UTC", "TZ=0", "CRON_TZ=Europe/Berlin", "TZ=Moon 0 0 * * *", "TZ=europe/berlin 0 0 * * *", "TZ=../x 0 0 * * *", "TZ=/etc/x 0 0 * * *",
			"TZ=a..b @daily", "TZ= 0 0 * * 9", "TZ=UTC  @dayly", "TZ=UTC ", "CRON_TZ=UTC * * *", "tz=UTC 0 0 * * *", "TZ=Local 0 0 * * 8", "TZ=Europe/Berlin\t0 0 * * *")
	case 2:
		return strings.Repeat(atom()+" ", random.Intn(8))
	}
	parts := make([]string, 5)
	for i := range parts {
		parts[i] = pick("*", "*", "1", atom())
	}
	return strings.Join(parts, pick(" ", " ", "  ", "\t"))
}

func start(zone *time.Location) time.Time {
	t := time.Unix(first+random.Int63n(last-first), 0).In(zone)
	if random.Intn(4) == 0 {
		return t
	}
	// Just before the next change of the clock.
	for i := 0; i < 800; i++ {
		next := t.Add(12 * time.Hour)
		_, a := t.Zone()
		if _, b := next.Zone(); a != b && next.Unix() < last {
			return t.Add(time.Duration(random.Int63n(int64(30*time.Hour)) - int64(16*time.Hour))).Truncate(time.Second)
		}
		t = next
	}
	return t
}

// The chain of next times.
func nexts(s cron.Schedule, t time.Time) (out []string) {
	for i := 0; i < chain; i++ {
		if t = s.Next(t); t.IsZero() {
			return append(out, "never")
		}
		out = append(out, strconv.FormatInt(t.Unix(), 10))
	}
	return out
}

func main() {
	count, _ := strconv.Atoi(os.Args[1])
	seed, _ := strconv.ParseInt(os.Args[2], 10, 64)
	random = rand.New(rand.NewSource(seed))
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for i := 0; i < count; i++ {
		name, text := zones[random.Intn(len(zones))], schedule()
		zone, err := time.LoadLocation(name)
		if err != nil {
			panic(err)
		}
		s, err := cron.ParseStandard("TZ=" + name + " " + text)
		if err != nil {
			fmt.Fprintf(out, "error\t%s\t%s\n", strconv.Quote("TZ="+name+" "+text), err)
			continue
		}
		from := start(zone)
		fmt.Fprintf(out, "next\t%s\t%s\t%d\t%s\n", name, text, from.Unix(), strings.Join(nexts(s, from), " "))
	}
	for i := 0; i < count/4; i++ {
		text := mistake()
		if err := parse(text); err != nil {
			fmt.Fprintf(out, "error\t%s\t%s\n", strconv.Quote(text), err)
		} else {
			fmt.Fprintf(out, "fine\t%s\n", strconv.Quote(text))
		}
	}
}

// As Kubernetes words the library's panics.
func parse(text string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("invalid schedule format: %v", r)
		}
	}()
	_, err = cron.ParseStandard(text)
	return err
}
