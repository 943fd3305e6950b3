# fish completion of cenote, and of zpool and zfs where those are cenote.

function __cenote_table
    switch "$argv[1]"
@TABLE@
    end
end

# Names of pools or datasets; nobody starts a daemon by pressing Tab.
function __cenote_names
    cenote daemon status >/dev/null 2>&1; or return
    switch $argv[1]
        case zpool
            cenote zpool list -H -o name 2>/dev/null
        case '*'
            cenote zfs list -H -o name -t $argv[2] 2>/dev/null
    end
end

# NAME=VALUE of a property, or NAME= while there is none.
function __cenote_settings
    set -l name (string split -m 1 = -- $argv[2])
    if test (count $name) -eq 2
        for value in (__cenote_table "$argv[1] values $name[1]")
            echo "$name[1]=$value"
        end
    else
        string replace -r '$' = -- (__cenote_table "$argv[1] settable")
    end
end

function __cenote_words
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l tool (string replace -r '.*/' '' -- $words[1])
    if test $tool = cenote
        if test (count $words) -eq 1
            __cenote_table cenote
            return
        end
        set -e words[1]
        set tool $words[1]
    end
    set -e words[1]
    while test "$words[1]" = --embedded; or string match -qr '^-[dkT]$' -- "$words[1]"
        test "$words[1]" = --embedded; or set -e words[1]
        set -e words[1]
    end
    set -l verb $words[1]
    set -l last $words[-1]
    set -l operands (string match -v -- '-*' $words[2..])
    switch $tool
        case zpool zfs
            if test (count $words) -eq 0
                __cenote_table $tool
            else if string match -q -- '-*' "$current"
                __cenote_table "$tool $verb"
            else if test "$last" = -O
                __cenote_settings zfs "$current"
            else if test "$last" = -o; and contains -- $verb create clone snapshot import
                __cenote_settings $tool "$current"
            else if test "$verb" = set; and test (count $operands) -eq 0
                __cenote_settings $tool "$current"
            else if contains -- "$verb" get inherit; and test (count $operands) -eq 0
                echo all
                __cenote_table "$tool properties"
            else if string match -q '*@*' -- "$current"
                __cenote_names zfs snapshot
            else
                __cenote_names $tool filesystem,volume
            end
        case daemon
            printf '%s\n' start stop status run
        case tunable
            if test (count $words) -eq 0
                printf '%s\n' list get set
            else
                cenote tunable --embedded list -H 2>/dev/null | cut -f 1
            end
        case completions
            printf '%s\n' bash zsh fish
    end
end

for name in cenote zpool zfs
    if test $name = cenote; or string match -q '*/cenote' -- (readlink -f (command -s $name) 2>/dev/null)
        complete -c $name -f -a '(__cenote_words)'
    end
end
