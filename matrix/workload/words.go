package workload

import "strings"

// wordsVersion changes whenever a corpus of the same spec would come out differently: other words, another order of draws.
const wordsVersion = 1

// words is the material of prompts: short common English words, which most tokenizers know as one token with the space
// before them. The text means nothing and is not meant to: what counts is its length and that no two prompts are alike.
var words = strings.Fields(`
able above acid across active actor adult after again agree ahead album alive allow alone along amber among angle animal
answer apple april argue arise armor arrow aside autumn avoid award aware bacon badge balance banana barrel basic basket
beach bean because become before begin behind below bench berry beyond bicycle birch bird blanket block blossom board boat
body book border borrow both bottle bottom bowl branch brave bread breeze brick bridge bright bring broad brother brown
brush bubble bucket build butter button cabin cable camera candle canvas captain carbon careful carpet carry castle center
chain chair chalk change chapel cheese cherry chest circle citizen clay clean clear climb clock cloud coast coffee collar
color common copper corner cotton country course cousin cover craft cream create cross crowd crown cycle daily dance danger
dark daughter deep degree deliver desert design detail dinner distant doctor dollar door double down dragon dream dress
drink drive during eager early earth eastern easy echo edge effort eight either elbow eleven empty engine enjoy enough
enter equal evening event every exact except expect fabric face factor family famous farmer feather fence fiber field fifty
figure final finger finish fire first fish flame flavor flight float floor flour flower follow forest forget fork formal
forty forward fountain fresh friend frost fruit future galaxy garden garlic gather general gentle giant ginger glass globe
glove golden grain grand grape grass gravel great green ground group grow guard guest guitar half hammer handle happy
harbor harvest heavy height hello helmet hidden highway history hollow honey horse hotel house humble hundred ice idea
image inch indeed inside island ivory jacket january join journey judge juice jungle just kettle kitchen knee knife ladder
lake language large later laugh layer leader leaf learn leather lemon letter level library light linen lion listen little
local logic lonely long lucky lunch machine magnet major maple marble march margin market master matter meadow measure
medal member memory metal method middle mile milk mineral minute mirror model modern moment money month moon morning mother
motion mountain mouse music narrow nature near needle never night nine noble north notice number oak object ocean october
office often olive only open orange orbit order other outside oven owner oxygen page paint palace panel paper parent park
partner pass pattern peace pearl pencil people pepper perfect person piano picture pillow pilot pine pipe planet plant
plate pocket poem point polar pond potato powder present pretty price prince profit proper public purple quarter queen
quick quiet rabbit radio railway rain rapid raven reader ready reason record region remain remote repair repeat reply
report rest ribbon rice right ring river road robin rocket roof room root rope rose round royal rubber ruler salad salt
sample sand saturn scale scarf school science season second secret seed seven shadow shape sharp sheep shell shelter shine
ship shirt short shoulder signal silent silver simple singer single sister six sketch sleep slow small smooth snow soap
social soft soil solar solid some song sound soup south space spark spice spider spirit spoon spring square stable staff
stage stair stamp star station steady steam steel stone store storm story stove street strong student sugar summer sunday
supper surface swan sweet table talent tall tea teacher tell temple ten tent theater thick thing third thread three throat
throw thunder ticket tiger timber time tiny title today tomato tongue tooth topic total tower town track trade train travel
tree tribe trust tunnel turn twelve twenty twice twin under unit until upper upward useful valley value velvet verse very
village violet violin visit voice volume wagon walk wall warm wash water wave wealth weather week west wheat wheel while
white whole wide wild window winter wire wise wolf wonder wood wool word work world worth write yard yellow yesterday young
zebra zero`)

// fillers make up the last tokens of a prompt where no word has the right count.
var fillers = strings.Split("abcdefghijklmnopqrstuvwxyz0123456789", "")
