package daemon

import (
	"net"
	"strings"
)

// Notify tells the service manager how the daemon stands (sd_notify(3)): READY=1, STOPPING=1, STATUS=… Without a manager
// it does nothing.
func Notify(getenv func(string) string, state ...string) error {
	addr := getenv("NOTIFY_SOCKET")
	if addr == "" {
		return nil
	}
	if strings.HasPrefix(addr, "@") { // an abstract socket
		addr = "\x00" + addr[1:]
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: addr, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte(strings.Join(state, "\n")))
	return err
}
